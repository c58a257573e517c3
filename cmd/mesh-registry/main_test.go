package main

import (
	"bufio"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mesh-control/mesh/internal/pki"
)

// The test binary is the program when this is set.
const asProgram = "MESH_REGISTRY_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTheProgramServesUntilItIsToldToEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := ca.Issue("registry", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	program := exec.CommandContext(t.Context(), os.Args[0],
		"--dir", filepath.Join(dir, "store"), "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0",
		"--certificate", write("cert.pem", certificate), "--key", write("key.pem", key),
		"--token-key", write("token.pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	program.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := program.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var said struct{ Addresses []string }
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &said) != nil || len(said.Addresses) != 2 {
		t.Fatalf("it said %q", lines.Text())
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	for _, address := range said.Addresses {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", address, response.Status)
		}
	}
	transport.CloseIdleConnections()
	if err := program.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		t.Log(lines.Text())
	}
	if err := program.Wait(); err != nil {
		t.Errorf("told to end: %v", err)
	}
}
