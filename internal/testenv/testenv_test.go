package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestHelperDies is not a test of its own: it is what TestServersDoNotOutliveTheTests kills.
func TestHelperDies(t *testing.T) {
	if os.Getenv("TESTENV_DIE") == "" {
		t.Skip("run by TestServersDoNotOutliveTheTests")
	}
	fmt.Println("database", testenv.Database(t))
	fmt.Println("broker", testenv.Broker(t).URL)
	fmt.Println("ready")
	select {}
}

func TestServersDoNotOutliveTheTests(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestHelperDies$", "-test.v")
	cmd.Env = append(os.Environ(), "TESTENV_DIE=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
		if what, address, ok := strings.Cut(lines.Text(), " "); ok && (what == "database" || what == "broker") {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			addresses[what] = u.Host
		}
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if len(addresses) != 2 {
		t.Fatalf("the servers did not start: %v", addresses)
	}
	deadline := time.Now().Add(time.Minute)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for what, address := range addresses {
		for {
			conn, err := net.Dial("tcp", address)
			if errors.Is(err, syscall.ECONNREFUSED) {
				break
			}
			if err == nil {
				conn.Close()
			}
			if time.Now().After(deadline) {
				t.Fatalf("the %s outlives the tests: %v", what, err)
			}
			<-ticker.C
		}
	}
}

func TestTemplateIsCopied(t *testing.T) {
	t.Parallel()
	prepared := 0
	template := testenv.Template{Prepare: func(ctx context.Context, url string) error {
		prepared++
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE TABLE things AS SELECT 7 AS id")
		return err
	}}
	for range 2 {
		conn, err := pgx.Connect(t.Context(), template.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		var id int
		if err := conn.QueryRow(t.Context(), "DELETE FROM things RETURNING id").Scan(&id); err != nil || id != 7 {
			t.Errorf("copy holds %d: %v", id, err)
		}
	}
	if prepared != 1 {
		t.Errorf("prepared %d times", prepared)
	}
}

func TestEngineAnswers(t *testing.T) {
	t.Parallel()
	if address := testenv.Engine(t); !strings.HasPrefix(address, "unix://") {
		t.Errorf("engine at %q", address)
	}
}
