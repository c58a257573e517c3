package host

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/mesh-control/mesh/schema"
)

// listen takes connections and hands each to serve.
func listen(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serve(conn.(*net.TCPConn))
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-ended })
	return listener.Addr().String()
}

func TestAPortThatHangsUpIsNotHealthy(t *testing.T) {
	t.Parallel()
	keep := func(c *net.TCPConn) { t.Cleanup(func() { _ = c.Close() }) }
	for name, c := range map[string]struct {
		serve   func(*net.TCPConn)
		healthy bool // of a container; a service, before which nothing stands, always is
	}{
		"waits to be spoken to": {keep, true},
		"speaks first":          {func(c *net.TCPConn) { _, _ = c.Write([]byte("220")); keep(c) }, true},
		"hangs up":              {func(c *net.TCPConn) { _ = c.Close() }, false},
		"resets":                {func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := schema.Health{TCP: listen(t, c.serve)}
			if err := newProber(nil).probe(t.Context(), check, "a-container"); (err == nil) != c.healthy {
				t.Errorf("a container: %v", err)
			}
			if err := newProber(nil).probe(t.Context(), check, ""); err != nil {
				t.Errorf("a service: %v", err)
			}
		})
	}
}

func TestAnswersThatAreHealthy(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(code)
	}))
	defer server.Close()
	for _, c := range []struct {
		answer  string
		status  []int
		healthy bool
	}{
		{"200", nil, true},
		{"204", nil, true},
		{"401", nil, false},
		{"503", nil, false},
		{"401", []int{200, 401}, true},
		{"200", []int{200, 401}, true},
		{"204", []int{200, 401}, false},
		{"500", []int{200, 401}, false},
	} {
		check := schema.Health{HTTP: server.URL + "/" + c.answer, Status: c.status}
		if err := newProber(nil).probe(t.Context(), check, ""); (err == nil) != c.healthy {
			t.Errorf("%s where %v is healthy: %v", c.answer, c.status, err)
		}
	}
}
