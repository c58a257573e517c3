package main

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
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

// trust writes the credential of a builder that reaches the broker through the front.
func (l *lab) trust(t *testing.T, f *front, file, pin string) {
	t.Helper()
	u, err := url.Parse(l.BuilderURL("one"))
	if err != nil {
		t.Fatal(err)
	}
	u.Host = f.address
	data, err := json.Marshal(schema.Credential{URL: u.String(), Fingerprint: pin})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
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
	file := credential(t, schema.Credential{})
	l.trust(t, f, file, pin)
	p := start(t, "run", "022", nil, "--broker-credential", file, "--store-credential", l.store, "--work", t.TempDir(), "--name", "one")
	l.ends(t, "issued", p)

	another := f.certify(t)
	deadline := time.Now().Add(buildertest.Patience)
	for strings.Count(p.log.String(), "fingerprint") < 3 { // not the first time, and not later
		if time.Now().After(deadline) {
			t.Fatalf("the builder does not say what is wrong:\n%s", p.log)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if n := f.spoken(); n > 0 {
		t.Errorf("the builder spoke %d times to a broker it cannot know", n)
	}

	l.trust(t, f, file, another)
	l.ends(t, "issued-again", p)
}
