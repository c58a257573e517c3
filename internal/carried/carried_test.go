package carried_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/carried"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
)

func TestMain(m *testing.M) { testenv.Run(m, registrytest.Leaks()) }

// docker runs the engine's command line and gives what it prints.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := dockerTry(t, args...)
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

func dockerTry(t *testing.T, args ...string) (string, error) {
	t.Helper()
	// Not the test's context: what a test made is removed when that has ended.
	out, err := exec.Command("docker", append([]string{"-H", testenv.Engine(t)}, args...)...).CombinedOutput()
	return string(out), err
}

// pulled carries an image in, and has the engine pull it as a node does.
func pulled(t *testing.T, image carried.Image) string {
	t.Helper()
	store := registrytest.Start(t)
	pushed, err := store.Client(t).PushLayout(t.Context(), image.Dir, image.Reference)
	if err != nil {
		t.Fatal(err)
	}
	mirrored, err := store.Client(t).Mirror(t.Context(), image.Reference, []string{"linux/amd64"}, "modules/test/server")
	if err != nil || mirrored.Digest != pushed.Digest {
		t.Fatalf("mirrored %+v, carried %+v: %v", mirrored, pushed, err)
	}
	proxy, err := registry.NewProxy("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Serve(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	if err := proxy.Update(store.Config()); err != nil {
		t.Fatal(err)
	}
	reference := proxy.Address() + "/modules/test/server@" + pushed.Digest
	docker(t, "pull", "-q", reference)
	t.Cleanup(func() {
		_, _ = dockerTry(t, "image", "rm", "-f", reference)
	})
	return reference
}

// run starts a container that ends with the test.
func run(t *testing.T, args ...string) string {
	t.Helper()
	id := docker(t, append([]string{"run", "-d"}, args...)...)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := dockerTry(t, "logs", id)
			t.Logf("%s", logs)
		}
		_, _ = dockerTry(t, "rm", "-f", "-v", id)
	})
	return id
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestTheSameFilesGiveTheSameImage(t *testing.T) {
	t.Parallel()
	first, err := carried.Busybox(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	second, err := carried.Busybox(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, b := content(t, first.Dir), content(t, second.Dir)
	if a != b || !strings.Contains(a, "index.json") {
		t.Errorf("two layouts of one machine:\n%s\n%s", a, b)
	}
	again, err := carried.Busybox(t.Context(), filepath.Dir(first.Dir))
	if err != nil || again != first {
		t.Errorf("from the cache: %+v, %v", again, err)
	}
}

func content(t *testing.T, dir string) string {
	t.Helper()
	var all bytes.Buffer
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(&all, "%s %d\n", strings.TrimPrefix(name, dir), len(text))
		if filepath.Base(name) == "index.json" {
			all.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestBusyboxRunsItsTools(t *testing.T) {
	t.Parallel()
	image, err := carried.Busybox(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := docker(t, "run", "--rm", "--network", "none", pulled(t, image), "sh", "-c", "echo hello | tr a-z A-Z"); got != "HELLO" {
		t.Errorf("got %q", got)
	}
}

func TestTheToolchainCompiles(t *testing.T) {
	t.Parallel()
	image, err := carried.Toolchain(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	reference := pulled(t, image)
	id := docker(t, "create", "--network", "none", "-w", "/src", reference, "go", "run", "main.go")
	t.Cleanup(func() { _, _ = dockerTry(t, "rm", "-f", id) })
	dir := t.TempDir()
	program := "package main\n\nimport \"runtime\"\n\nfunc main() { print(runtime.Version()) }\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	docker(t, "cp", dir+"/.", id+":/src")
	want := "go" + image.Reference[strings.LastIndex(image.Reference, ":")+1:]
	if got := docker(t, "start", "-a", id); !strings.HasPrefix(got, want) {
		t.Errorf("it says %q, want %q", got, want)
	}
}

func TestPostgresTakesTheEnvironmentOfThePublicImage(t *testing.T) {
	t.Parallel()
	image, err := carried.Postgres(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	reference := pulled(t, image)
	password := hex.EncodeToString([]byte(rand.Text()))
	secrets, data := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "superuser"), []byte(password), 0o400); err != nil {
		t.Fatal(err)
	}
	id := run(t, "-p", "127.0.0.1::5432", "-v", secrets+":/secrets:ro", "-v", data+":/var/lib/postgresql/data",
		"-e", "POSTGRES_PASSWORD_FILE=/secrets/superuser", "-e", "POSTGRES_USER=boss", "-e", "POSTGRES_DB=shop", reference, "postgres", "-c", "max_connections=23")
	connect := func(user, password, database string) (*pgx.Conn, error) {
		address, err := dockerTry(t, "port", id, "5432/tcp")
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, address)
		}
		return pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", user, password, strings.TrimSpace(address), database))
	}
	try := func() error {
		conn, err := connect("boss", password, "shop")
		if err != nil {
			return err
		}
		defer conn.Close(t.Context())
		_, err = conn.Exec(t.Context(), "CREATE TABLE IF NOT EXISTS kept (n int); INSERT INTO kept VALUES (1)")
		return err
	}
	eventually(t, "first start", try)
	first, err := connect("boss", password, "shop")
	if err != nil {
		t.Fatal(err)
	}
	var connections int
	if err := first.QueryRow(t.Context(), "SELECT current_setting('max_connections')::int").Scan(&connections); err != nil || connections != 23 {
		t.Errorf("max_connections is %d, %v: the command's own -c was not passed on", connections, err)
	}
	_ = first.Close(t.Context())
	if conn, err := connect("boss", "wrong", "shop"); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a wrong password was taken")
	}
	if got := docker(t, "exec", id, "sh", "-c", "stat -c %u /proc/1; tr -d '\\0' </proc/1/comm"); !strings.HasPrefix(got, "999\npostgres") {
		t.Errorf("process 1 is %q", got)
	}
	docker(t, "restart", "-t", "30", id)
	eventually(t, "second start", try)
	conn, err := connect("boss", password, "shop")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM kept").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows after a restart, error %v", n, err)
	}
}

func TestTheBrokerTakesTheEnvironmentOfThePublicImage(t *testing.T) {
	t.Parallel()
	image, err := carried.Broker(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	id := run(t, "-e", "RABBITMQ_DEFAULT_USER=boss", "-e", "RABBITMQ_DEFAULT_PASS=secret", "-e", "RABBITMQ_NODENAME=mesh@localhost", pulled(t, image))
	eventually(t, "start", func() error {
		out, err := dockerTry(t, "exec", id, "wget", "-q", "-O-", "http://boss:secret@127.0.0.1:15672/api/whoami")
		if err != nil || !strings.Contains(out, `"administrator"`) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// That it serves, the registry's module shows; here, that nothing beside the program is needed.
func TestTheRegistryIsItsProgram(t *testing.T) {
	t.Parallel()
	image, err := carried.Registry(testenv.Program(t, "../../cmd/mesh-registry"))(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if out := docker(t, "run", "--rm", "--read-only", pulled(t, image), "--help"); !strings.Contains(out, "--token-key") {
		t.Errorf("it says %q", out)
	}
	if _, err := carried.Registry(filepath.Join(t.TempDir(), "none"))(t.Context(), t.TempDir()); err == nil {
		t.Error("an image of no program")
	}
}
