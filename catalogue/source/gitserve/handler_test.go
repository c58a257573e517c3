package gitserve_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/catalogue/source/gitserve"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// serve serves a repository with three commits, a nested tree, an annotated tag and a packed
// half, and gives its URL.
func serve(t *testing.T) (*testenv.Repo, string) {
	t.Helper()
	repo := testenv.Git(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		content := make([]byte, 3000)
		for j := range content {
			content[j] = byte('a' + random.IntN(26))
		}
		repo.Write(fmt.Sprintf("deep/%d/er/file", i), string(content))
	}
	repo.Write("empty", "")
	repo.Write("module.json", `{"name":"x"}`)
	repo.Commit("first")
	repo.Write("deep/1/er/file", strings.Repeat("x", 100_000))
	repo.Commit("second")
	repo.Run("gc", "--quiet")
	repo.Write("deep/2/er/file", "loose")
	repo.Commit("third")
	repo.Run("tag", "--annotate", "--message", "a tag", "v1")
	server := httptest.NewServer(&gitserve.Handler{Root: filepath.Dir(repo.Bare)})
	t.Cleanup(server.Close)
	return repo, server.URL + "/" + filepath.Base(repo.Bare)
}

// git runs the git program without the machine's configuration.
func git(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func must(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(t, dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return out
}

func TestGitClonesInFullAndOfADepth(t *testing.T) {
	t.Parallel()
	repo, url := serve(t)
	head := repo.Run("rev-parse", "HEAD")
	for _, version := range []string{"0", "2"} {
		for _, depth := range []int{0, 1, 2} {
			args := []string{"-c", "protocol.version=" + version, "clone", "--quiet"}
			want := 3
			if depth > 0 {
				args, want = append(args, fmt.Sprintf("--depth=%d", depth)), depth
			}
			dir := filepath.Join(t.TempDir(), "clone")
			must(t, "", append(args, url, dir)...)
			if got := must(t, dir, "rev-parse", "HEAD"); got != head {
				t.Errorf("depth %d: head %s, want %s", depth, got, head)
			}
			if got := must(t, dir, "rev-list", "--count", "HEAD"); got != fmt.Sprint(want) {
				t.Errorf("depth %d: %s commits, want %d", depth, got, want)
			}
			if out := must(t, dir, "fsck", "--full", "--strict"); strings.Contains(out, "missing") {
				t.Errorf("depth %d: %s", depth, out)
			}
			if depth != 1 {
				continue
			}
			must(t, dir, "fetch", "--quiet", "--unshallow")
			if got := must(t, dir, "rev-list", "--count", "HEAD"); got != "3" {
				t.Errorf("unshallowed: %s commits", got)
			}
			must(t, dir, "fsck", "--full")
		}
	}
}

func TestGitFetchesWhatIsNew(t *testing.T) {
	t.Parallel()
	repo, url := serve(t)
	dir, shallow := filepath.Join(t.TempDir(), "clone"), filepath.Join(t.TempDir(), "shallow")
	must(t, "", "clone", "--quiet", url, dir)
	must(t, "", "clone", "--quiet", "--depth=1", url, shallow)
	repo.Write("more", "more")
	hash := repo.Commit("fourth")
	for _, clone := range []string{dir, shallow} {
		must(t, clone, "pull", "--quiet")
		if got := must(t, clone, "rev-parse", "HEAD"); got != hash {
			t.Errorf("pulled %s, want %s", got, hash)
		}
		must(t, clone, "fsck", "--full")
	}
	if out := must(t, dir, "count-objects", "-v"); !strings.Contains(out, "packs: 1") {
		t.Errorf("the second fetch was not small: %s", out)
	}
}

func TestCatalogueReadsWhatIsServed(t *testing.T) {
	t.Parallel()
	repo, url := serve(t)
	client, err := source.New(source.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, ref := range []string{"", "main", "v1"} {
		snapshot, err := client.Fetch(t.Context(), url, ref, nil)
		if err != nil {
			t.Fatalf("fetch %q: %v", ref, err)
		}
		files, err := snapshot.Walk(t.Context(), nil)
		if err != nil || len(files) != 1 || snapshot.Head.Commit != repo.Run("rev-parse", "HEAD") {
			t.Errorf("ref %q: %v, %+v, %+v", ref, err, files, snapshot.Head)
		}
		_ = snapshot.Close()
	}
}

func TestNothingIsWrittenAndNothingElseServed(t *testing.T) {
	t.Parallel()
	repo, url := serve(t)
	dir := filepath.Join(t.TempDir(), "clone")
	must(t, "", "clone", "--quiet", url, dir)
	before := repo.Run("for-each-ref")
	if out, err := git(t, dir, "push", "origin", "HEAD:refs/heads/other"); err == nil {
		t.Errorf("a push went through: %s", out)
	}
	if after := repo.Run("for-each-ref"); after != before {
		t.Errorf("refs were %s and are %s", before, after)
	}
	if out, err := git(t, "", "ls-remote", strings.TrimSuffix(url, "repo.git")+"nowhere.git"); err == nil {
		t.Errorf("an unknown repository answers %s", out)
	}
	for _, path := range []string{"/../repo.git/info/refs?service=git-upload-pack", "/HEAD", "/info/refs", "/objects/info/packs"} {
		response, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK && !strings.Contains(path, "..") {
			t.Errorf("%s answers %s", path, response.Status)
		}
	}
	outside := httptest.NewRequest(http.MethodGet, "/x/info/refs?service=git-upload-pack", nil)
	outside.URL.Path = "/../" + filepath.Base(filepath.Dir(repo.Bare)) + "/repo.git/info/refs"
	recorder := httptest.NewRecorder()
	(&gitserve.Handler{Root: filepath.Dir(repo.Bare)}).ServeHTTP(recorder, outside)
	if recorder.Code != http.StatusNotFound {
		t.Errorf("a path out of the root answers %d", recorder.Code)
	}
}

// A commit that was taken back must not be had by whoever remembers its hash.
func TestCommitNoRefReachesIsRefused(t *testing.T) {
	t.Parallel()
	repo, url := serve(t)
	repo.Write("secret", "secret")
	secret := repo.Commit("secret")
	repo.Run("reset", "--quiet", "--hard", "HEAD~1")
	request := fmt.Sprintf("0032want %s\n00000009done\n", secret)
	response, err := http.Post(url+"/git-upload-pack", "application/x-git-upload-pack-request", bytes.NewBufferString(request))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("answers %s", response.Status)
	}
}
