package main

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

// front stands before the broker with a certificate of its own, which can be changed.
type front struct {
	address string
	broker  string

	mu     sync.Mutex
	config *tls.Config
	open   []net.Conn
	met    int // connections whose handshake the client ended well
}

// newFront gives a front before the broker of an AMQP URL.
func newFront(t *testing.T, broker string) *front {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{address: listener.Addr().String(), broker: u.Host}
	t.Cleanup(func() { _ = listener.Close(); f.cut() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f.carry(conn)
		}
	}()
	return f
}

// certify gives the front another certificate and breaks every connection. The certificate's
// fingerprint is returned.
func (f *front) certify(t *testing.T) string {
	t.Helper()
	ca, err := pki.NewCA("front")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue("front", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := pki.ServerConfig(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := pki.FingerprintPEM(cert)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.config, f.met = config, 0
	f.mu.Unlock()
	f.cut()
	return pin
}

func (f *front) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.open {
		_ = c.Close()
	}
	f.open = nil
}

func (f *front) carry(conn net.Conn) {
	f.mu.Lock()
	client := tls.Server(conn, f.config)
	f.open = append(f.open, client)
	f.mu.Unlock()
	defer client.Close()
	// A client of TLS 1.3 that refuses the certificate says so after the server's handshake:
	// what counts is that it speaks.
	first := make([]byte, 8)
	if _, err := io.ReadFull(client, first); err != nil {
		return
	}
	f.mu.Lock()
	f.met++
	f.mu.Unlock()
	//nolint:gosec // the broker of this test; the builder is what is being tested
	broker, err := tls.Dial("tcp", f.broker, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer broker.Close()
	f.mu.Lock()
	f.open = append(f.open, broker)
	f.mu.Unlock()
	if _, err := broker.Write(first); err != nil {
		return
	}
	go func() { _, _ = io.Copy(broker, client); _ = broker.Close() }()
	_, _ = io.Copy(client, broker)
}

func (f *front) spoken() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.met
}

// through gives the credential of a builder that reaches the broker through the front.
func (l *lab) through(t *testing.T, f *front, pin string) schema.Credential {
	t.Helper()
	u, err := url.Parse(l.BuilderURL("one"))
	if err != nil {
		t.Fatal(err)
	}
	u.Host = f.address
	return schema.Credential{URL: u.String(), Fingerprint: pin}
}

// renew replaces a credential's file under the program that reads it.
func renew(t *testing.T, file string, c schema.Credential) {
	t.Helper()
	if err := os.Rename(credential(t, c), file); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for what a program is to do.
func eventually(t *testing.T, p *program, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(buildertest.Patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s\n%s", buildertest.Patience, what, p.log)
		}
	}
}

// ends orders a build and waits until it ends and its job is off the queue: whoever breaks the
// connection before that has it built again.
func (l *lab) ends(t *testing.T, id string, p *program) {
	t.Helper()
	l.Order(schema.Job{ID: id, Repository: l.repo.URL(), Path: "m"})
	select {
	case result := <-l.Results:
		if result.ID != id || result.Outcome != schema.OutcomeBuilt {
			t.Fatalf("%s %s: %+v\n%s", result.ID, result.Outcome, result.Error, p.log)
		}
		l.Settled()
	case <-timeout():
		t.Fatalf("no result\n%s", p.log)
	}
}

// The builder runs as in a container that has no CA bundle, behind a certificate of which no
// trust store knows.
func TestS1_062_TheMeshsOwnCertificateIsAcceptedThoughNoTrustStoreKnowsIt(t *testing.T) {
	l := newLab(t)
	l.writeModule("m")
	l.repo.Commit("a module")
	none := []string{"SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent"}
	p := start(t, "run", "022", none, "--broker-credential", credential(t, schema.Credential{URL: l.BuilderURL("one"), Fingerprint: l.Fingerprint}),
		"--store-credential", l.store, "--work", t.TempDir(), "--name", "one")
	l.ends(t, "without-a-bundle", p)
}

func TestS1_063_NothingIsLearnedOfABrokerThatShowsAnotherCertificate(t *testing.T) {
	l := newLab(t)
	l.writeModule("m")
	l.repo.Commit("a module")
	f := newFront(t, l.BuilderURL("one"))
	pin := f.certify(t)
	file := credential(t, l.through(t, f, pin))
	p := start(t, "run", "022", nil, "--broker-credential", file, "--store-credential", l.store, "--work", t.TempDir(), "--name", "one")
	l.ends(t, "issued", p)

	another := f.certify(t)
	eventually(t, p, "it says what is wrong, more than once", func() bool {
		return strings.Count(p.log.String(), "fingerprint") >= 3
	})
	if n := f.spoken(); n > 0 {
		t.Errorf("the builder spoke %d times to a broker it cannot know", n)
	}

	renew(t, file, l.through(t, f, another))
	l.ends(t, "issued-again", p)
}

// listens is the address of one of a program's servers.
func (p *program) listens(t *testing.T, what string) string {
	t.Helper()
	var line struct{ What, Address string }
	eventually(t, p, "it listens for "+what, func() bool {
		for text := range strings.Lines(p.log.String()) {
			if json.Unmarshal([]byte(text), &line) == nil && line.What == what {
				return true
			}
		}
		return false
	})
	return line.Address
}

// readiness is what a program answers at /readyz.
func readiness(t *testing.T, p *program) (status int, text string) {
	t.Helper()
	response, err := http.Get("http://" + p.listens(t, "metrics") + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// The process runs all along, and with a credential that opens nothing it is not ready.
func TestS1_059_ABuilderWithAWrongPasswordIsNotReady(t *testing.T) {
	l := newLab(t)
	l.writeModule("m")
	l.repo.Commit("a module")
	issued := l.BuilderURL("one")
	u, err := url.Parse(issued)
	if err != nil {
		t.Fatal(err)
	}
	const wrong = "the-password-of-another"
	u.User = url.UserPassword(u.User.Username(), wrong)
	file := credential(t, schema.Credential{URL: u.String(), Fingerprint: l.Fingerprint})
	p := start(t, "run", "022", nil, "--broker-credential", file, "--store-credential", l.store,
		"--work", t.TempDir(), "--name", "one", "--listen-metrics", "127.0.0.1:0")
	eventually(t, p, "the refusal is said", func() bool {
		status, text := readiness(t, p)
		return status == http.StatusServiceUnavailable && strings.Contains(text, "password not allowed")
	})
	if strings.Contains(p.log.String(), wrong) {
		t.Error("the log holds the password")
	}

	renew(t, file, schema.Credential{URL: issued, Fingerprint: l.Fingerprint})
	l.ends(t, "issued", p)
	if status, text := readiness(t, p); status != http.StatusOK || text != "ok: takes builds\n" {
		t.Errorf("with the issued credential: %d %s", status, text)
	}
}
