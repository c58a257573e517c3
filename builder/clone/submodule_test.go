package clone_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/testenv"
)

// gitlink records a submodule at a commit, without asking whether there is such a one.
func gitlink(repo *testenv.Repo, path, commit string) {
	repo.Run("update-index", "--add", "--cacheinfo", "160000,"+commit+","+path)
}

// commitLinks commits what is staged, and gitlinks, which have no directory in the work tree.
func commitLinks(repo *testenv.Repo, links map[string]string) {
	repo.Run("add", "--all")
	for path, commit := range links {
		gitlink(repo, path, commit)
	}
	repo.Run("commit", "--quiet", "--message", "submodules")
}

func modules(addresses map[string]string) string {
	var b strings.Builder
	for path, url := range addresses {
		fmt.Fprintf(&b, "[submodule %q]\n\tpath = %s\n\turl = %s\n", "name of "+path, path, url)
	}
	return b.String()
}

// beside puts a copy of a repository next to another, under a name.
func beside(t *testing.T, repo, copied *testenv.Repo, name string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(filepath.Dir(repo.Bare), name), os.DirFS(copied.Bare)); err != nil {
		t.Fatal(err)
	}
}

func TestZooSubmodulesAreReadAtTheirRecordedCommits(t *testing.T) {
	t.Parallel()
	inner := testenv.Git(t)
	inner.Write("deepest", "deepest")
	innermost := inner.Commit("inner")
	lib := testenv.Git(t)
	lib.Write("version", "1")
	lib.Write("sub/tool", "tool")
	lib.Write(".gitmodules", modules(map[string]string{"third": "../inner.git"}))
	commitLinks(lib, map[string]string{"third": innermost})
	recorded := lib.Run("rev-parse", "HEAD")
	lib.Write("version", "2")
	lib.Run("commit", "--quiet", "--all", "--message", "the tip, which nobody recorded")
	repo := testenv.Git(t)
	repo.Write("m/module.json", "{}")
	repo.Write("other/file", "x")
	repo.Write(".gitmodules", modules(map[string]string{"m/lib": "../lib.git", "other/broken": "http://127.0.0.1:1/x.git"}))
	commitLinks(repo, map[string]string{"m/lib": recorded, "other/broken": recorded})
	beside(t, repo, lib, "lib.git")
	beside(t, repo, inner, "inner.git")
	server := testenv.GitSSH(t, filepath.Dir(repo.Bare))
	for _, req := range []clone.Request{
		{Repository: repo.URL()},
		{Repository: server.URL("repo.git"), Credential: server.Credential()},
		{Repository: repo.Bare, AllowLocal: true},
		{Repository: "https://watched.example.org/repo.git", From: repo.Bare, AllowLocal: true},
	} {
		c := get(t, req)
		got := unpack(t, packed(t, c, "m"))
		for name, want := range map[string]string{"lib/version": "1", "lib/sub/tool": "tool", "lib/third/deepest": "deepest"} {
			if got[name].content != want {
				t.Errorf("%s: %s is %q, want %q", req.Repository, name, got[name].content, want)
			}
		}
		if got := unpack(t, packed(t, c, "m/lib/sub")); got["tool"].content != "tool" {
			t.Errorf("%s: a directory in a submodule holds %v", req.Repository, got)
		}
		if data, err := c.Read("m/lib/version"); err != nil || string(data) != "1" {
			t.Errorf("%s: read %q, %v", req.Repository, data, err)
		}
		if !c.Exists("m/lib/sub") || c.Exists("m/lib/none") {
			t.Errorf("%s: what exists in a submodule is wrong", req.Repository)
		}
		if _, err := c.Entries("other"); reason(err) != clone.ReasonUnreachable || !strings.Contains(err.Error(), "submodule other/broken") {
			t.Errorf("%s: a submodule that cannot be reached: %v", req.Repository, err)
		}
	}
}

func TestZooSubmodulesThatAreRefused(t *testing.T) {
	t.Parallel()
	local := testenv.Git(t)
	local.Write("secret", "of the builder's own disk")
	commit := local.Commit("local")
	repo := testenv.Git(t)
	addresses := map[string]string{
		"file/s": "file://" + local.Bare, "path/s": local.Bare, "scheme/s": "ext::sh -c id", "option/s": "--upload-pack=id",
		"password/s": "https://u:canary@127.0.0.1/x",
	}
	links := map[string]string{"unnamed/s": commit}
	for path := range addresses {
		links[path] = commit
	}
	repo.Write("plain/file", "x")
	repo.Write(".gitmodules", modules(addresses))
	commitLinks(repo, links)
	url := repo.URL()
	c := get(t, clone.Request{Repository: url, AllowLocal: true})
	for path := range links {
		_, err := c.Entries(filepath.Dir(path))
		if reason(err) != clone.ReasonSubmodule || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if got := unpack(t, packed(t, c, "plain")); len(got) != 1 {
		t.Errorf("a directory beside them holds %v", got)
	}
}

func TestZooSubmoduleThatNamesItselfEnds(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("file", "x")
	first := repo.Commit("first")
	// A commit cannot hold its own hash, so each level names the one before it.
	for range 12 {
		repo.Write(".gitmodules", modules(map[string]string{"s": "./"}))
		commitLinks(repo, map[string]string{"s": first})
		first = repo.Run("rev-parse", "HEAD")
	}
	c := get(t, clone.Request{Repository: repo.URL()})
	if _, err := c.Entries(""); reason(err) != clone.ReasonSubmodule || !strings.Contains(err.Error(), "deep in others") {
		t.Errorf("%v", err)
	}
}

func TestZooCredentialGoesToItsOwnServerAlone(t *testing.T) {
	t.Parallel()
	const token = "canary-token"
	var mu sync.Mutex
	seen := map[string]bool{}
	gate := func(name string) func(http.ResponseWriter, *http.Request) http.ResponseWriter {
		return func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
			mu.Lock()
			defer mu.Unlock()
			_, password, _ := r.BasicAuth()
			seen[name] = seen[name] || password == token
			return w
		}
	}
	lib := testenv.Git(t)
	lib.Write("file", "x")
	commit := lib.Commit("lib")
	other := lib.URLBehind(gate("other"))
	repo := testenv.Git(t)
	beside(t, repo, lib, "lib.git")
	repo.Write(".gitmodules", modules(map[string]string{"other": other, "own": "../lib.git"}))
	commitLinks(repo, map[string]string{"other": commit, "own": commit})
	url := repo.URLBehind(gate("own"))
	c := get(t, clone.Request{Repository: url, Credential: &git.Credential{Password: token}})
	if got := unpack(t, packed(t, c, "")); len(got) != 3 {
		t.Errorf("packed %v", got)
	}
	if !seen["own"] || seen["other"] {
		t.Errorf("the token went to %v", seen)
	}
}
