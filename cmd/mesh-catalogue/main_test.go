package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/notice"
	"github.com/mesh-control/mesh/catalogue/notice/noticetest"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/schema"
)

// asProgram makes the test binary the program itself.
const asProgram = "MESH_CATALOGUE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	testenv.Run(m)
}

// program is the real program under way. Its log names the addresses it listens on.
type program struct {
	cmd       *exec.Cmd
	addresses map[string]string
	ended     chan error
}

func startProgram(t *testing.T, listeners int, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(os.Args[0], args...), addresses: map[string]string{}, ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	lines := bufio.NewScanner(stderr)
	for len(p.addresses) < listeners && lines.Scan() {
		var line struct{ What, Address string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("not a line of JSON: %s", lines.Text())
		}
		if line.Address != "" {
			p.addresses[line.What] = line.Address
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, stderr)
		p.ended <- p.cmd.Wait()
	}()
	return p
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s in time", what)
		}
	}
}

func get(t *testing.T, address string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// credentialFile writes the database's credential in the shape every credential file has.
func credentialFile(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(u.Port())
	password, _ := u.User.Password()
	data, err := json.Marshal(schema.Credential{
		Host: u.Hostname(), Port: port, User: u.User.Username(), Password: password, Database: strings.TrimPrefix(u.Path, "/"),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "database.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestProgramWatchesServesAndStops(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	repo := testenv.Git(t)
	repo.Write("module.json", "{\n  \"name\": \"one\"\n}\n")
	hash := repo.Commit("first")
	p := startProgram(t, 2, "--database-credential", credentialFile(t, database), "--poll", "1s", "--dir", t.TempDir(),
		"--listen-metrics", "127.0.0.1:0", "--serve", "127.0.0.1:0", "--serve-root", filepath.Dir(repo.Bare))
	if status, text := get(t, p.addresses["metrics"]+"/healthz"); status != http.StatusOK {
		t.Errorf("health: %d %s", status, text)
	}
	eventually(t, "leading", func() bool {
		status, text := get(t, p.addresses["metrics"]+"/readyz")
		return status == http.StatusOK && strings.Contains(text, "leading")
	})
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	// The program reads what it serves, as a builder would.
	address := fmt.Sprintf("http://%s/%s", p.addresses["repositories"], filepath.Base(repo.Bare))
	if _, err := conn.Exec(t.Context(), `SELECT catalogue.request_add_repository($1, '', $2)`, address, repo.Bare); err != nil {
		t.Fatal(err)
	}
	recorded := func(hash string) func() bool {
		return func() bool {
			var n int
			err := conn.QueryRow(t.Context(), `SELECT count(*) FROM catalogue.sources WHERE module = 'one' AND state = 'ok' AND commit = $1`, hash).Scan(&n)
			return err == nil && n == 1
		}
	}
	eventually(t, "recorded", recorded(hash))
	repo.Write("file", "x")
	eventually(t, "recorded again", recorded(repo.Commit("second")))
	if _, text := get(t, p.addresses["metrics"]+"/metrics"); !strings.Contains(text, `mesh_git_fetch_total{outcome="ok"} 2`) {
		t.Errorf("metrics: %s", text)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("did not end when told to")
	}
}

func TestProgramSaysWhatItCannotUse(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "credential")
	if err := os.WriteFile(file, []byte(`{"passwort": "canary"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"required flag":     {},
		"at least 1s":       {"--database-credential", file, "--poll", "10ms"},
		"no such file":      {"--database-credential", file + "-none"},
		"neither a postgre": {"--database-credential", file},
		"serve-root":        {"--database-credential", file, "--serve", "127.0.0.1:0"},
		"--listen-hooks":    {"--database-credential", file, "--hooks-url", "https://mesh.example"},
		"--hooks-url":       {"--database-credential", file, "--listen-hooks", "127.0.0.1:0", "--hooks-url", "mesh.example/hooks"},
	} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "canary") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

// The program says that it is not ready while the database is down, and waits for it.
func TestProgramWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "credential")
	if err := os.WriteFile(file, []byte("postgres://mesh:canary@127.0.0.1:1/mesh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, 2, "--database-credential", file, "--dir", t.TempDir(), "--listen-metrics", "127.0.0.1:0", "--listen-hooks", "127.0.0.1:0")
	response, err := http.DefaultClient.Do(noticetest.Generic("https://forge.example/x", notice.NewSecret()).Request(t.Context(), "http://"+p.addresses["hooks"]+catalogue.HooksPath))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		t.Errorf("a notice without a database: %s", response.Status)
	}
	if status, _ := get(t, p.addresses["metrics"]+"/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("ready without a database: %d", status)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
