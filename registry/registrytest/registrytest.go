// Package registrytest runs real registries for tests, with TLS and tokens, in a directory that
// ends with the test: the mesh's embedded one ([Start]), the same as in production, and the
// distribution project's 2.8 ([StartDistribution]). [Each] runs a test on both.
package registrytest

import (
	"context"
	"crypto/ed25519"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
)

// Leaks names the goroutine that the library behind the registry starts and cannot be told to
// end, one for each server. It is for goleak in the TestMain of whoever starts one.
func Leaks() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/docker/go-events.(*Broadcaster).run")
}

// Registry is a running registry.
type Registry struct {
	URL         string             // https://127.0.0.1:port
	Address     string             // 127.0.0.1:port
	Addresses   []string           // all it listens on, in the order they were given
	CA          string             // PEM
	Fingerprint string             // of the CA
	Key         ed25519.PrivateKey // signs the tokens of an embedded one
	Dir         string             // of the store
	// Process is the program, of a registry that is one.
	Process *testenv.DockerRegistry

	token func(pattern string, actions []string) string
}

// Start runs a registry until the test ends. It listens on loopback and on every further
// address given, as "172.17.0.1:0".
func Start(t testing.TB, listen ...string) *Registry {
	t.Helper()
	return StartAt(t, memory(t), listen...)
}

// memory is a directory that waits for no disk, where the machine has one: a registry syncs
// every blob it is given.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mesh-registry-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// StartAt is Start on a store of the caller's.
func StartAt(t testing.TB, dir string, listen ...string) *Registry {
	t.Helper()
	ca, err := pki.NewCA("registry test")
	check(t, err)
	caPEM, _, err := ca.PEM()
	check(t, err)
	certificate, key, err := ca.Issue("registry", []string{"127.0.0.1", "localhost", "172.17.0.1"})
	check(t, err)
	public, private, err := ed25519.GenerateKey(nil)
	check(t, err)
	server, err := registry.NewServer(registry.ServerConfig{
		Dir: dir, Certificate: certificate, Key: key, Public: public,
		Listen: append([]string{"127.0.0.1:0"}, listen...), Log: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("registry ended: %v", err)
		}
	})
	address := server.Addresses()[0]
	return &Registry{
		URL: "https://" + address, Address: address, Addresses: server.Addresses(), CA: string(caPEM),
		Fingerprint: pki.Fingerprint(ca.Cert), Key: private, Dir: dir,
		token: func(pattern string, actions []string) string {
			return registry.SignToken(private, registry.Claims{
				Subject: "test", IssuedAt: time.Now(), Access: []registry.Access{{Repository: pattern, Actions: actions}},
			})
		},
	}
}

// Token allows actions in the repositories of a pattern.
func (r *Registry) Token(pattern string, actions ...string) string { return r.token(pattern, actions) }

// Empty takes everything out of the store. Registries on a file system keep no memory of it.
func (r *Registry) Empty(t testing.TB) {
	t.Helper()
	check(t, os.RemoveAll(filepath.Join(r.Dir, "docker")))
}

// Age makes everything in the store older by d, as if nothing had happened for so long.
func (r *Registry) Age(t testing.TB, d time.Duration) {
	t.Helper()
	check(t, filepath.WalkDir(r.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		at := info.ModTime().Add(-d)
		return os.Chtimes(path, at, at)
	}))
}

func matches(pattern, name string) bool {
	claims := registry.Claims{Access: []registry.Access{{Repository: pattern, Actions: []string{registry.ActionPull}}}}
	return claims.Allows(name, registry.ActionPull)
}

// Config is how to reach the registry with everything allowed.
func (r *Registry) Config() registry.Config {
	return registry.Config{
		URL: r.URL, Fingerprint: r.Fingerprint,
		Token: r.Token("*", registry.ActionPull, registry.ActionPush, registry.ActionDelete, registry.ActionList, registry.ActionCollect),
	}
}

// Client has everything allowed. It is closed when the test ends.
func (r *Registry) Client(t testing.TB) *registry.Client {
	t.Helper()
	return Client(t, r.Config())
}

// Client makes a client that is closed when the test ends.
func Client(t testing.TB, config registry.Config) *registry.Client {
	t.Helper()
	client, err := registry.NewClient(config)
	check(t, err)
	t.Cleanup(client.Close)
	return client
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
