package testenv

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Repo is a git repository made by the git program.
type Repo struct {
	Dir  string // work tree, to be written to
	Bare string // the bare repository behind URL

	t    testing.TB
	once sync.Once
	url  string
}

// Git makes an empty repository on branch main. It is removed after the test.
func Git(t testing.TB) *Repo {
	t.Helper()
	root := t.TempDir()
	repo := &Repo{Dir: filepath.Join(root, "work"), Bare: filepath.Join(root, "served", "repo.git"), t: t}
	for _, dir := range []string{repo.Dir, repo.Bare} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	repo.Run("init", "--quiet", "--bare", "--initial-branch=main", repo.Bare)
	return repo
}

// Run runs git on the repository and its work tree, and gives what it printed.
func (r *Repo) Run(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.Dir
	cmd.Env = append(gitEnvironment(r.Dir), "GIT_DIR="+r.Bare, "GIT_WORK_TREE="+r.Dir)
	if args[0] == "init" {
		cmd.Env = gitEnvironment(r.Dir)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Write writes a file of the work tree; directories are made as needed.
func (r *Repo) Write(path, content string) {
	r.t.Helper()
	full := filepath.Join(r.Dir, filepath.FromSlash(path))
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// Remove removes a file or directory of the work tree.
func (r *Repo) Remove(path string) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(r.Dir, filepath.FromSlash(path))); err != nil {
		r.t.Fatal(err)
	}
}

// Commit commits the whole work tree, changed or not, and gives the commit's hash. It is
// served at once.
func (r *Repo) Commit(message string) string {
	r.t.Helper()
	r.Run("add", "--all")
	r.Run("commit", "--quiet", "--allow-empty", "--message", message)
	return r.Run("rev-parse", "HEAD")
}

// URL serves the repository, read-only, over HTTP on the loopback address until the test ends.
func (r *Repo) URL() string {
	r.once.Do(func() {
		r.url = r.URLBehind(func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter { return w })
	})
	return r.url
}

// URLBehind serves the repository, read-only, over HTTP behind a gate, which may answer
// itself and give nil, or give the writer that the answer goes through.
func (r *Repo) URLBehind(gate func(http.ResponseWriter, *http.Request) http.ResponseWriter) string {
	root := filepath.Dir(r.Bare)
	git := gitHandler(root)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if w = gate(w, request); w != nil {
			git.ServeHTTP(w, request)
		}
	}))
	r.t.Cleanup(server.Close)
	return server.URL + "/" + filepath.Base(r.Bare)
}

// gitHandler is the git program's own server. Pushing over HTTP is refused by it as long as
// nobody is authenticated.
func gitHandler(root string) http.Handler {
	git, err := exec.LookPath("git")
	if err != nil {
		return http.NotFoundHandler()
	}
	return &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Dir: root,
		Env: append(gitEnvironment(root), "GIT_PROJECT_ROOT="+root, "GIT_HTTP_EXPORT_ALL=1"),
	}
}

// gitEnvironment keeps the machine's git configuration out.
func gitEnvironment(home string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Author", "GIT_AUTHOR_EMAIL=author@example.org",
		"GIT_COMMITTER_NAME=Author", "GIT_COMMITTER_EMAIL=author@example.org",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=uploadpack.allowFilter", "GIT_CONFIG_VALUE_1=true",
	}
}
