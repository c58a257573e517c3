package registry_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
)

// front stands before a registry and spoils requests, counted from 1.
type front struct {
	*httptest.Server
	requests atomic.Int64
	spoil    func(n int, w http.ResponseWriter, r *http.Request, pass http.Handler)
}

func newFront(t *testing.T, behind *registrytest.Registry) *front {
	t.Helper()
	target, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := meshTransport(behind)
	t.Cleanup(transport.CloseIdleConnections)
	pass := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	f := &front{spoil: func(_ int, w http.ResponseWriter, r *http.Request, pass http.Handler) { pass.ServeHTTP(w, r) }}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.spoil(int(f.requests.Add(1)), w, r, pass)
	}))
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.StartTLS()
	t.Cleanup(f.Close) // closing twice does nothing
	return f
}

// config reaches the registry behind the front through it.
func (f *front) config(behind *registrytest.Registry) registry.Config {
	config := behind.Config()
	config.URL = f.URL
	config.Fingerprint = pki.Fingerprint(f.Certificate())
	return config
}

func meshTransport(r *registrytest.Registry) *http.Transport {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(r.CA))
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
}

// plain is an HTTP client that knows the registry's CA and nothing of this package.
func plain(t *testing.T, r *registrytest.Registry) *http.Client {
	t.Helper()
	transport := meshTransport(r)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func get(t *testing.T, client *http.Client, method, url, token string, header ...string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}
