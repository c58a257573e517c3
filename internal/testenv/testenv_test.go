package testenv_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	first, second := testenv.Database(t), testenv.Database(t)
	if first == second {
		t.Fatalf("two databases at one URL %s", first)
	}
	for _, url := range []string{first, second} {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if _, err := conn.Exec(t.Context(), "CREATE TABLE probe (id int)"); err != nil {
			t.Errorf("a fresh database is not empty: %v", err)
		}
	}
}

func TestGitIsServedReadOnly(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("a/b.txt", "hello")
	commit := repo.Commit("first")
	out, err := exec.CommandContext(t.Context(), "git", "ls-remote", repo.URL(), "refs/heads/main").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), commit) {
		t.Errorf("ls-remote: %v, %s, want %s", err, out, commit)
	}
	clone := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", repo.URL(), clone).CombinedOutput(); err != nil {
		t.Fatalf("clone: %v: %s", err, out)
	}
	push := exec.CommandContext(t.Context(), "git", "-C", clone, "push", "origin", "main:other")
	if out, err := push.CombinedOutput(); err == nil {
		t.Errorf("a push over HTTP was taken: %s", out)
	}
}

func TestBrokerAnswers(t *testing.T) {
	t.Parallel()
	if broker := testenv.Broker(t); broker.Fingerprint == "" || broker.URL == "" {
		t.Errorf("broker says %+v", broker)
	}
}
