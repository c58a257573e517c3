package host

import (
	"net"
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
