package catalogue_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/foundation"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestEachReadFailureHasItsReasonAndRecovers(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	hash := repo.Commit("first")
	private := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
	}))
	t.Cleanup(private.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String() + "/x.git"
	_ = closed.Close()
	r := start(t)
	for url, reason := range map[string]string{
		private.URL + "/x.git": "AuthenticationFailed",
		nobody:                 "Unreachable",
		strings.TrimSuffix(repo.URL(), ".git") + "-no.git": "RepositoryNotFound",
		t.TempDir():                   "RepositoryNotFound",
		"/does/not/exist":             "Unreachable",
		"ssh://git@127.0.0.1:1/x.git": "AuthenticationFailed",
	} {
		r.add(url, "")
		if x := r.inState(url, reason); x.Message == "" {
			t.Errorf("%s: no message", url)
		}
	}
	r.add(repo.URL(), "later")
	if x := r.inState(repo.URL(), "RefNotFound"); !strings.Contains(x.Message, `"later"`) {
		t.Errorf("message %q", x.Message)
	}
	repo.Run("branch", "later")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
}

func TestAddressWithACredentialIsRefused(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, url := range []string{
		"https://user:canary-secret@example.org/x.git", "https://canary-token@example.org/x", "ssh://git:canary@example.org/x",
		"ext::sh -c true", "-upload-pack=x", "relative/path", "", "http://example.org/a b", "https://example.org/x\n",
	} {
		_, err := r.pool.Exec(t.Context(), `SELECT catalogue.request_add_repository($1, '', '')`, url)
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", url, err)
		}
	}
	for _, ref := range []string{"-x", "a..b", "a b", "refs/heads/*", "/x"} {
		if _, err := r.pool.Exec(t.Context(), `SELECT catalogue.request_add_repository('https://example.org/x', $1, '')`, ref); err == nil {
			t.Errorf("ref %q is accepted", ref)
		}
	}
}

// A dozen servers that accept and never answer hold their own slots only.
func TestHangingServersDelayNobody(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	repo := testenv.Git(t)
	many(repo, 1)
	hash := repo.Commit("first")
	r := start(t, func(c *catalogue.Config) {
		c.Poll, c.Asks, c.AskTimeout = time.Second, 4, 500*time.Millisecond
	})
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	var urls []string
	for i := range 12 {
		urls = append(urls, fmt.Sprintf("http://%s/%d.git", silent.Addr(), i))
		r.add(urls[i], "")
	}
	for _, url := range urls {
		if x := r.inState(url, "Unreachable"); !strings.Contains(x.Message, "no answer in time") {
			t.Errorf("message %q", x.Message)
		}
	}
	for i := range 3 {
		began := time.Now()
		repo.Write("modules/m0/file", fmt.Sprint(i))
		hash := repo.Commit("next")
		r.refresh(repo.URL())
		r.at(repo.URL(), hash)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a commit beside hanging servers took %s", took)
		}
	}
}

// Polling is off: only the watch can tell.
func TestWatchedDirectoryTellsOfACommit(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	hash := repo.Commit("first")
	r := start(t)
	local := "file://" + repo.Bare
	r.add(local, "main")
	r.exec(`SELECT catalogue.request_add_repository($1, 'main', $2)`, repo.URL(), repo.Bare)
	r.at(local, hash)
	r.at(repo.URL(), hash)
	commit := func(what string) {
		t.Helper()
		repo.Write("modules/m0/file", what)
		hash := repo.Commit(what)
		r.at(local, hash)
		r.at(repo.URL(), hash)
	}
	commit("a loose ref, replaced by a rename")
	repo.Run("pack-refs", "--all", "--prune")
	commit("after packing, the loose ref is a new file")
	repo.Run("checkout", "--quiet", "-b", "a/b/c")
	r.exec(`SELECT catalogue.request_add_repository($1, 'a/b/c', '')`, local)
	r.exec(`SELECT catalogue.request_add_repository($1, 'a/b/c', $2)`, repo.URL(), repo.Bare)
	commit("in directories that did not exist")
	repo.Run("gc", "--quiet", "--prune=now")
	commit("after everything was packed")
}

func TestReplacedDirectoryIsWatchedAgain(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	hash := repo.Commit("first")
	r := start(t)
	local := "file://" + repo.Bare
	r.add(local, "main")
	r.at(local, hash)
	for i := range 2 {
		replacement := filepath.Join(filepath.Dir(repo.Bare), fmt.Sprintf("replacement-%d", i))
		if err := os.CopyFS(replacement, os.DirFS(repo.Bare)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(repo.Bare, repo.Bare+fmt.Sprintf("-old-%d", i)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(replacement, repo.Bare); err != nil {
			t.Fatal(err)
		}
		// The first may be seen because the replacement was; the second shows only to a watch
		// on the new directory.
		for range 2 {
			repo.Write("modules/m0/file", fmt.Sprint(i, time.Now().UnixNano()))
			r.at(local, repo.Commit("into the replacement"))
		}
	}
	if err := os.Rename(repo.Bare, repo.Bare+"-gone"); err != nil {
		t.Fatal(err)
	}
	r.inState(local, "Unreachable")
	if err := os.Rename(repo.Bare+"-gone", repo.Bare); err != nil {
		t.Fatal(err)
	}
	r.inState(local, "ok")
}

func TestPollingNoticesWithoutAWatch(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	hash := repo.Commit("first")
	r := start(t, every(time.Second))
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	repo.Write("modules/m0/file", "two")
	r.at(repo.URL(), repo.Commit("second"))
}

func TestSuspendedRepositoryIsLeftAlone(t *testing.T) {
	t.Parallel()
	suspended, clock := testenv.Git(t), testenv.Git(t)
	many(suspended, 1)
	first := suspended.Commit("first")
	clock.Commit("first")
	r := start(t, every(time.Second))
	r.add(suspended.URL(), "")
	r.add(clock.URL(), "")
	r.at(suspended.URL(), first)
	r.exec(`SELECT catalogue.request_suspend_repository($1, true)`, suspended.URL())
	r.eventually("suspended repositories", func() (bool, string) {
		n := r.gauge("mesh_catalogue_repositories", "suspended")
		return n == 1, fmt.Sprint(n)
	})
	second := suspended.Commit("second")
	for i := range 3 { // commits that are noticed by polling: time enough for one more
		clock.Write("file", fmt.Sprint(i))
		r.at(clock.URL(), clock.Commit("next"))
	}
	if x := r.repository(suspended.URL()); x.Commit != first {
		t.Errorf("the suspended repository is %+v", x)
	}
	r.exec(`SELECT catalogue.request_suspend_repository($1, false)`, suspended.URL())
	r.at(suspended.URL(), second)
}

func TestStandbyTakesOverFromALeaderThatDies(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	first := repo.Commit("first")
	url := migrated.Database(t)
	a, b := startOn(t, url), startOn(t, url)
	a.add(repo.URL(), "")
	a.at(repo.URL(), first)
	if n := a.counter("mesh_git_fetch_total") + b.counter("mesh_git_fetch_total"); n != 1 {
		t.Errorf("%d fetches by two catalogues", n)
	}
	leader, standby := a, b
	if b.counter("mesh_git_fetch_total") == 1 {
		leader, standby = b, a
	}
	leader.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	repo.Write("modules/m0/file", "two")
	second := repo.Commit("second")
	leader.eventually("somebody leading", func() (bool, string) {
		leader.refresh(repo.URL())
		return leader.repository(repo.URL()).Commit == second, "not recorded"
	})
	if n := standby.counter("mesh_git_ls_remote_total"); n == 0 {
		t.Error("the standby did not take over")
	}
}

// A restart of PostgreSQL under load: everything connects again and nothing is lost.
func TestPostgresRestartLosesNothing(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.start()
	url := server.recipe.URL(foundation.DefaultDatabaseUser, server.recipe.Password, "postgres")
	if err := migrated.Prepare(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	repos := make([]*testenv.Repo, 5)
	r := startOn(t, url, every(time.Second))
	for i := range repos {
		repos[i] = testenv.Git(t)
		repos[i].Write("m/module.json", module(fmt.Sprintf("r%d", i)))
		hash := repos[i].Commit("first")
		r.add(repos[i].URL(), "")
		r.at(repos[i].URL(), hash)
	}
	server.stop()
	hashes := make([]string, len(repos))
	for i, repo := range repos {
		repo.Write("m/file", "while the database is down")
		hashes[i] = repo.Commit("second")
	}
	server.start()
	for i, repo := range repos {
		r.at(repo.URL(), hashes[i])
		if s := r.source(fmt.Sprintf("r%d", i)); s.Commit != hashes[i] || s.State != "ok" {
			t.Errorf("source %+v", s)
		}
	}
	// The notification works again too, not only polling.
	r.add("/does/not/exist", "")
	r.inState("/does/not/exist", "Unreachable")
}

// postgres is a server of one test's own.
type postgres struct {
	t      *testing.T
	recipe foundation.Postgres
	quit   func()
}

func newServer(t *testing.T) *postgres {
	t.Helper()
	dir, err := os.MkdirTemp("", "catalogue-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &postgres{t: t, recipe: foundation.Postgres{
		Dir: filepath.Join(dir, "server"), Port: port.Addr().(*net.TCPAddr).Port, Password: "test",
		Settings: map[string]string{"shared_buffers": "32MB"},
	}}
	_ = port.Close()
	if os.Geteuid() == 0 {
		p.recipe.User = "postgres"
	}
	t.Cleanup(func() {
		p.stop()
		_ = os.RemoveAll(dir)
	})
	if err := p.recipe.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *postgres) start() {
	p.t.Helper()
	command, err := p.recipe.Command()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd, err := command.Cmd(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.quit = func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // at once, as a crash would
		_ = cmd.Wait()
	}
	if err := p.recipe.WaitReady(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *postgres) stop() {
	if p.quit != nil {
		p.quit()
		p.quit = nil
	}
}

// TestControllerRoleReadsAndAsksAndWritesNothing is the border between the two schemas.
func TestControllerRoleReadsAndAsksAndWritesNothing(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.exec(`DO $$ BEGIN
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'mesh_controller') THEN CREATE ROLE mesh_controller LOGIN; END IF;
IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'mesh_stranger') THEN CREATE ROLE mesh_stranger LOGIN; END IF; END $$`)
	if err := catalogue.Migrate(t.Context(), r.pool); err != nil {
		t.Fatal(err)
	}
	as := func(role, sql string) error {
		tx, err := r.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+pgx.Identifier{role}.Sanitize()); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), sql)
		return err
	}
	for _, sql := range []string{
		`SELECT * FROM catalogue.repositories`, `SELECT * FROM catalogue.sources`, `SELECT * FROM catalogue.changes`,
		`SELECT catalogue.request_add_repository('https://example.org/x', '', '')`,
		`SELECT catalogue.request_remove_repository('x')`, `SELECT catalogue.request_refresh_repository('x')`,
	} {
		if err := as("mesh_controller", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		if err := as("mesh_stranger", sql); err == nil {
			t.Errorf("a stranger may %s", sql)
		}
	}
	for _, sql := range []string{
		`INSERT INTO catalogue.repositories (url) VALUES ('x')`, `UPDATE catalogue.sources SET state = 'ok'`,
		`DELETE FROM catalogue.changes`, `TRUNCATE catalogue.sources`, `DROP TABLE catalogue.sources`,
		`CREATE TABLE catalogue.x ()`,
	} {
		if err := as("mesh_controller", sql); err == nil {
			t.Errorf("the controller may %s", sql)
		}
	}
}
