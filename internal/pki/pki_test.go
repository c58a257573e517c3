package pki_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

// serve answers TLS with a certificate for hosts, and sends every byte a client manages to
// say after the handshake to heard.
func serve(t *testing.T, ca *pki.CA, hosts ...string) (address, fingerprint string, heard chan []byte) {
	t.Helper()
	cert, key, err := ca.Issue("server", hosts)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pki.ServerConfig(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	heard = make(chan []byte, 16)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				text, _ := io.ReadAll(conn)
				heard <- text
			}()
		}
	}()
	fingerprint, err = pki.FingerprintPEM(cert)
	if err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String(), fingerprint, heard
}

func dial(address string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("password"))
	return errors.Join(err, conn.Close())
}

func newCA(t *testing.T) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA("mesh test")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestPinOfLeafConnects(t *testing.T) {
	t.Parallel()
	address, pin, heard := serve(t, newCA(t), "127.0.0.1")
	if err := dial(address, pki.ClientConfig("sha256:00", pin)); err != nil {
		t.Fatalf("the second of two pins is the server's: %v", err)
	}
	if got := string(<-heard); got != "password" {
		t.Errorf("the server heard %q", got)
	}
}

func TestS1_061_AnotherCertificateSeesNoPassword(t *testing.T) {
	t.Parallel()
	_, pin, _ := serve(t, newCA(t), "127.0.0.1")
	address, _, heard := serve(t, newCA(t), "127.0.0.1")
	err := dial(address, pki.ClientConfig(pin))
	if !errors.Is(err, pki.ErrPin) {
		t.Fatalf("got %v, want %v", err, pki.ErrPin)
	}
	if got := <-heard; len(got) != 0 {
		t.Errorf("the other server heard %q", got)
	}
}

func TestNoPinRefusesEveryServer(t *testing.T) {
	t.Parallel()
	address, _, _ := serve(t, newCA(t), "127.0.0.1")
	if err := dial(address, pki.ClientConfig()); err == nil || !strings.Contains(err.Error(), "no fingerprint") {
		t.Fatalf("got %v, want a refusal that names the missing fingerprint", err)
	}
}

func TestPinOfAuthorityNeedsTheNameToo(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	pin := pki.Fingerprint(ca.Cert)
	config := pki.ClientConfig(pin)
	config.ServerName = pki.ControllerName
	right, _, _ := serve(t, ca, pki.ControllerName, "127.0.0.1")
	if err := dial(right, config); err != nil {
		t.Errorf("a certificate of the pinned authority for this name: %v", err)
	}
	wrong, _, _ := serve(t, ca, "elsewhere.mesh", "127.0.0.1")
	if err := dial(wrong, config); err == nil {
		t.Error("a certificate of the pinned authority for another name was accepted")
	}
	if err := dial(right, pki.ClientConfig(pin)); err == nil {
		t.Error("a pinned authority was believed without a name")
	}
}

func TestPinHoldsOnResumedSessions(t *testing.T) {
	t.Parallel()
	address, pin, _ := serve(t, newCA(t), "127.0.0.1")
	good, bad := pki.ClientConfig(pin), pki.ClientConfig("sha256:00")
	cache := tls.NewLRUClientSessionCache(1)
	good.ClientSessionCache, bad.ClientSessionCache = cache, cache
	if err := dial(address, good); err != nil {
		t.Fatal(err)
	}
	if err := dial(address, bad); !errors.Is(err, pki.ErrPin) {
		t.Fatalf("a client with another pin resumed the session: %v", err)
	}
}

func TestAuthorityReadsBack(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	cert, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := pki.LoadCA(cert, key)
	if err != nil || pki.Fingerprint(again.Cert) != pki.Fingerprint(ca.Cert) {
		t.Fatalf("read back %v, %v", again, err)
	}
	_, otherKey, _ := newCA(t).PEM()
	if _, err := pki.LoadCA(cert, otherKey); err == nil {
		t.Error("a key of another authority was accepted")
	}
}

func TestS1_054_SealedOpensOnlyForItsNodeAndField(t *testing.T) {
	t.Parallel()
	private, public, err := pki.NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	info := pki.SealInfo("mesh", "n1", pki.KeyFingerprint(public), "builder", "broker", "1")
	sealed, err := pki.Seal(public, info, []byte("canary"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sealed.Data), "canary") {
		t.Error("the sealed bytes show the value")
	}
	if got, err := pki.Open(private, sealed); err != nil || string(got) != "canary" {
		t.Fatalf("opened %q, %v", got, err)
	}
	moved := sealed
	moved.Info = pki.SealInfo("mesh", "n1", pki.KeyFingerprint(public), "builder", "artifact-store", "1")
	if _, err := pki.Open(private, moved); !errors.Is(err, pki.ErrOpen) {
		t.Errorf("moved to another field: %v", err)
	}
	other, _, err := pki.NewSealingKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Open(other, sealed); !errors.Is(err, pki.ErrOpen) {
		t.Errorf("opened with another node's key: %v", err)
	}
	altered := sealed
	altered.Data = append([]byte(nil), sealed.Data...)
	altered.Data[len(altered.Data)-1] ^= 1
	if _, err := pki.Open(private, altered); !errors.Is(err, pki.ErrOpen) {
		t.Errorf("altered: %v", err)
	}
}

func TestDeclarationSignature(t *testing.T) {
	t.Parallel()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	declaration := schema.Declaration{Schema: schema.Version, Node: "n1", Epoch: 1, Generation: 7, Hash: "sha256:00"}
	if err := pki.SignDeclaration(key, &declaration); err != nil {
		t.Fatal(err)
	}
	if err := pki.VerifyDeclaration(public, declaration); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*schema.Declaration){
		"node": func(d *schema.Declaration) { d.Node = "n2" }, "generation": func(d *schema.Declaration) { d.Generation = 8 },
		"epoch": func(d *schema.Declaration) { d.Epoch = 2 }, "hash": func(d *schema.Declaration) { d.Hash = "sha256:01" },
		"resources": func(d *schema.Declaration) { d.Resources = []schema.Resource{{ID: "a/b"}} },
	} {
		altered := declaration
		change(&altered)
		if err := pki.VerifyDeclaration(public, altered); !errors.Is(err, pki.ErrSignature) {
			t.Errorf("another %s: %v", name, err)
		}
	}
}

func TestDialRefusesPlainServer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = conn.Write([]byte("220 hello\r\n"))
			conn.Close()
		}
	}()
	if err := dial(listener.Addr().String(), pki.ClientConfig("sha256:00")); err == nil {
		t.Error("a server without TLS was accepted")
	}
}
