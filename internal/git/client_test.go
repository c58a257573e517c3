package git_test

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

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

func client(t *testing.T, config git.Config) *git.Client {
	t.Helper()
	if config.Dir == "" {
		config.Dir = t.TempDir()
	}
	c, err := git.New(config)
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
	c := client(t, git.Config{})
	for _, address := range []string{repo.URL(), repo.Bare, "file://" + repo.Bare} {
		for ref, want := range map[string]git.Head{
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
			commit, err := c.Fetch(t.Context(), address, ref, nil)
			if err != nil {
				t.Errorf("%s %q: %v", address, ref, err)
				continue
			}
			if commit.Head != want || commit.CommittedAt.IsZero() {
				t.Errorf("%s %q: fetched %+v", address, ref, commit.Head)
			}
			_ = commit.Close()
		}
		for _, ref := range []string{"none", "refs/heads/none"} {
			if _, err := c.LsRemote(t.Context(), address, ref, nil); git.ReasonOf(err) != git.RefNotFound {
				t.Errorf("%s %q: %v", address, ref, err)
			}
		}
	}
}

func TestLargeFetchGoesToDiskAndIsRemoved(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	incompressible(t, repo, "large", 3<<20)
	repo.Commit("first")
	dir := t.TempDir()
	stale := filepath.Join(dir, "fetch-left-behind")
	if err := os.MkdirAll(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	c := client(t, git.Config{Dir: dir, MemoryBytes: 1 << 20})
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Error("what an earlier process left is still there")
	}
	commit, err := c.Fetch(t.Context(), repo.URL(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if held, _ := filepath.Glob(filepath.Join(dir, "fetch-*")); len(held) != 1 {
		t.Errorf("on disk: %v", held)
	}
	if blob, err := object.GetBlob(commit.Objects, plumbing.NewHash(repo.Run("rev-parse", "HEAD:large"))); err != nil || blob.Size != 3<<20 {
		t.Errorf("%+v, %v", blob, err)
	}
	if err := commit.Close(); err != nil {
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
	c := client(t, git.Config{Dir: dir, MemoryBytes: 256 << 10, MaxBytes: 1 << 20})
	for _, url := range []string{repo.URL(), bomb.URL()} {
		if _, err := c.Fetch(t.Context(), url, "", nil); git.ReasonOf(err) != git.TooLarge {
			t.Errorf("%v", err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
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
	c := client(t, git.Config{})
	_, err := c.LsRemote(t.Context(), server.URL+"/x.git", "", &git.Credential{Password: secret})
	if sent != secret || git.ReasonOf(err) != git.AuthenticationFailed {
		t.Fatalf("sent %q, got %v", sent, err)
	}
	if text := err.Error(); strings.Contains(text, "canary") || strings.Contains(text, "\x1b") || len(text) > 500 {
		t.Errorf("the error is %d bytes: %q", len(text), text)
	}
}

func TestDisallowedAddressesAreNotTried(t *testing.T) {
	t.Parallel()
	c := client(t, git.Config{})
	for _, address := range []string{
		"ext::sh -c true", "ftp://example.org/x", "https://user:canary@example.org/x", "https://canary@example.org/x",
		"relative", "", "https://", "https:///x", "file://host/x", "-x",
		"git://example.org/x",
	} {
		_, err := c.LsRemote(t.Context(), address, "", nil)
		if git.ReasonOf(err) != git.Invalid || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A server that accepts and says nothing holds neither its caller nor a connection.
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
	c, key := client(t, git.Config{}), testenv.GitSSH(t, t.TempDir()).Credential()
	for _, address := range []string{"http://%s/x.git", "ssh://%s/x.git"} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		_, err := c.LsRemote(ctx, fmt.Sprintf(address, silent.Addr()), "", key)
		cancel()
		if git.ReasonOf(err) != git.Unreachable || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %v after %s", address, err, time.Since(began))
		}
	}
}
