package source_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

func client(t *testing.T, config source.Config) *source.Client {
	t.Helper()
	if config.Dir == "" {
		config.Dir = t.TempDir()
	}
	c, err := source.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// incompressible writes a file of n bytes that no compression shrinks.
func incompressible(t *testing.T, repo *testenv.Repo, path string, n int) {
	t.Helper()
	content := make([]byte, n)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	repo.Write(path, string(content))
}

func TestRefsAreFoundByWhateverNameTheyAreGiven(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("module.json", "{}")
	first := repo.Commit("first")
	repo.Run("tag", "--annotate", "--message", "one", "v1")
	repo.Run("tag", "light")
	repo.Run("branch", "v1")
	repo.Write("file", "x")
	second := repo.Commit("second")
	repo.Run("update-ref", "refs/heads/v1", second)
	c := client(t, source.Config{})
	for _, address := range []string{repo.URL(), repo.Bare, "file://" + repo.Bare} {
		for ref, want := range map[string]source.Head{
			"":                {Ref: "refs/heads/main", Commit: second},
			"main":            {Ref: "refs/heads/main", Commit: second},
			"refs/heads/main": {Ref: "refs/heads/main", Commit: second},
			"v1":              {Ref: "refs/heads/v1", Commit: second}, // a branch before a tag
			"refs/tags/v1":    {Ref: "refs/tags/v1", Commit: first},   // the commit, not the tag
			"light":           {Ref: "refs/tags/light", Commit: first},
		} {
			head, err := c.LsRemote(t.Context(), address, ref, nil)
			if err != nil || head != want {
				t.Errorf("%s %q: %+v, %v; want %+v", address, ref, head, err, want)
			}
			snapshot, err := c.Fetch(t.Context(), address, ref, nil)
			if err != nil {
				t.Errorf("%s %q: %v", address, ref, err)
				continue
			}
			if snapshot.Head != want || snapshot.CommittedAt.IsZero() {
				t.Errorf("%s %q: fetched %+v", address, ref, snapshot.Head)
			}
			_ = snapshot.Close()
		}
		for _, ref := range []string{"none", "refs/heads/none", first} {
			if _, err := c.LsRemote(t.Context(), address, ref, nil); source.ReasonOf(err) != source.RefNotFound {
				t.Errorf("%s %q: %v", address, ref, err)
			}
		}
	}
}

func TestLargeFetchGoesToDiskAndIsRemoved(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("modules/a/module.json", `{"name":"a"}`)
	incompressible(t, repo, "large", 3<<20)
	repo.Commit("first")
	dir := t.TempDir()
	stale := filepath.Join(dir, "fetch-left-behind")
	if err := os.MkdirAll(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	c := client(t, source.Config{Dir: dir, MemoryBytes: 1 << 20})
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Error("what an earlier process left is still there")
	}
	snapshot, err := c.Fetch(t.Context(), repo.URL(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if held, _ := filepath.Glob(filepath.Join(dir, "fetch-*")); len(held) != 1 {
		t.Errorf("on disk: %v", held)
	}
	files, err := snapshot.Walk(t.Context(), nil)
	if err != nil || len(files) != 1 || files[0].Path != "modules/a" {
		t.Fatalf("%+v, %v", files, err)
	}
	if data, err := snapshot.Read(files[0].Blob); err != nil || string(data) != `{"name":"a"}` {
		t.Errorf("read %q, %v", data, err)
	}
	if err := snapshot.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestTooLargeIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	incompressible(t, repo, "large", 2<<20)
	repo.Commit("first")
	bomb := testenv.Git(t)
	bomb.Write("large", strings.Repeat("x", 32<<20))
	bomb.Commit("first")
	dir := t.TempDir()
	c := client(t, source.Config{Dir: dir, MemoryBytes: 256 << 10, MaxBytes: 1 << 20})
	for _, url := range []string{repo.URL(), bomb.URL()} {
		if _, err := c.Fetch(t.Context(), url, "", nil); source.ReasonOf(err) != source.TooLarge {
			t.Errorf("%v", err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestKnownDirectoriesAreNotDescendedInto(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	for _, path := range []string{"a/module.json", "a/b/module.json", "c/module.json"} {
		repo.Write(path, path)
	}
	repo.Commit("first")
	c := client(t, source.Config{})
	snapshot, err := c.Fetch(t.Context(), repo.URL(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	known := repo.Run("rev-parse", "HEAD:a")
	files, err := snapshot.Walk(t.Context(), func(path, tree string) bool { return path == "a" && tree == known })
	if err != nil || len(files) != 2 || files[0].Path != "a" || !files[0].Known || files[1].Path != "c" || files[1].Known {
		t.Errorf("%+v, %v", files, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := snapshot.Walk(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestCredentialIsSentAndNeverShown(t *testing.T) {
	t.Parallel()
	const secret = "canary-5f0c/&+secret"
	var sent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, sent, _ = r.BasicAuth()
		http.Error(w, "go away with "+sent+" \x1b[31m"+strings.Repeat("long ", 1000), http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	c := client(t, source.Config{})
	_, err := c.LsRemote(t.Context(), server.URL+"/x.git", "", &source.Auth{Password: secret})
	if sent != secret || source.ReasonOf(err) != source.AuthenticationFailed {
		t.Fatalf("sent %q, got %v", sent, err)
	}
	if text := err.Error(); strings.Contains(text, "canary") || strings.Contains(text, "\x1b") || len(text) > 500 {
		t.Errorf("the error is %d bytes: %q", len(text), text)
	}
}

func TestDisallowedAddressesAreNotTried(t *testing.T) {
	t.Parallel()
	c := client(t, source.Config{})
	for _, address := range []string{
		"ext::sh -c true", "ftp://example.org/x", "https://user:canary@example.org/x", "https://canary@example.org/x",
		"relative", "", "https://", "https:///x", "file://host/x", "-x",
	} {
		_, err := c.LsRemote(t.Context(), address, "", nil)
		if source.ReasonOf(err) != source.Invalid || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", address, err)
		}
	}
	for _, address := range []string{"https://example.org/x", "ssh://git@example.org/x", "git@example.org:x/y.git", "/x", "file:///x", "git://example.org/x"} {
		if err := source.CheckAddress(address); err != nil {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// go-git's ssh transport connects without a context: a server that accepts and says nothing
// must not hold its caller.
func TestSilentServerEndsWithTheDeadline(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 8)
	go func() {
		defer close(accepted)
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	t.Cleanup(func() {
		_ = silent.Close()
		for conn := range accepted {
			_ = conn.Close()
		}
	})
	c := client(t, source.Config{})
	for _, address := range []string{"http://%s/x.git", "git://%s/x.git"} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		_, err := c.LsRemote(ctx, fmt.Sprintf(address, silent.Addr()), "", nil)
		cancel()
		if source.ReasonOf(err) != source.Unreachable || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %v after %s", address, err, time.Since(began))
		}
	}
}
