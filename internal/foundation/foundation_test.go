package foundation_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
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
	"go.uber.org/goleak"

	"github.com/mesh-control/mesh/internal/foundation"
	"github.com/mesh-control/mesh/internal/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// directory is one that another account may pass through.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "foundation-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func port(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func certificate(t *testing.T) (cert, key []byte, fingerprint string) {
	t.Helper()
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err = ca.Issue("server", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	fingerprint, err = pki.FingerprintPEM(cert)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, fingerprint
}

// supervise runs a command as a supervisor would; stop sends a signal and waits.
func supervise(t *testing.T, command foundation.Command, err error) (process *os.Process, stop func(syscall.Signal)) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := command.Cmd(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	stopped := false
	stop = func(signal syscall.Signal) {
		if stopped {
			return
		}
		stopped = true
		if err := cmd.Process.Signal(signal); err != nil {
			t.Errorf("signal: %v", err)
		}
		select {
		case <-done:
		case <-time.After(time.Minute):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
			t.Errorf("%s does not stop on %s: %s", command.Exec, signal, &output)
		}
	}
	t.Cleanup(func() { stop(syscall.SIGKILL) })
	return cmd.Process, stop
}

func closed(t *testing.T, port int) {
	t.Helper()
	ctx := deadline(t)
	for {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil {
			conn.Close()
		}
		select {
		case <-ctx.Done():
			t.Fatalf("port %d is still served", port)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestPostgresKeepsItsDataAndItsDoorClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	t.Parallel()
	recipe := foundation.Postgres{
		Dir: filepath.Join(directory(t), "pg"), Port: port(t), Password: "it's secret", Settings: map[string]string{"fsync": "off"},
	}
	if os.Geteuid() == 0 {
		recipe.User = "postgres"
	}
	recipe.CertPEM, recipe.KeyPEM, _ = certificate(t)
	ask := func(address, sql string) (string, error) {
		conn, err := pgx.Connect(deadline(t), address)
		if err != nil {
			return "", err
		}
		defer conn.Close(deadline(t))
		var answer string
		err = conn.QueryRow(deadline(t), sql).Scan(&answer)
		return answer, err
	}
	for run := range 2 {
		if err := recipe.Init(deadline(t)); err != nil {
			t.Fatal(err)
		}
		command, err := recipe.Command()
		process, stop := supervise(t, command, err)
		if err := recipe.WaitReady(deadline(t)); err != nil {
			t.Fatal(err)
		}
		superuser := recipe.URL(foundation.DefaultDatabaseUser, recipe.Password, "postgres")
		if run == 0 {
			if _, err := ask(superuser, "SELECT set_config('a.b', '', false)"); err != nil {
				t.Fatal(err)
			}
			if _, err := ask(superuser, "CREATE DATABASE kept"); err != nil && !errors.Is(err, pgx.ErrNoRows) {
				t.Fatal(err)
			}
		}
		kept := recipe.URL(foundation.DefaultDatabaseUser, recipe.Password, "kept")
		if tls, err := ask(kept, "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()"); err != nil || tls != "true" {
			t.Errorf("run %d: TLS %s: %v", run, tls, err)
		}
		if _, err := ask(recipe.URL(foundation.DefaultDatabaseUser, "wrong", "postgres"), "SELECT ''"); err == nil {
			t.Error("a wrong password opens the database")
		}
		text, err := os.ReadFile(recipe.PidFile())
		if err != nil || !strings.HasPrefix(string(text), strconv.Itoa(process.Pid)+"\n") {
			t.Errorf("pid file says %q, the process is %d: %v", text, process.Pid, err)
		}
		stop(syscall.SIGTERM)
		closed(t, recipe.Port)
	}
}

func TestBrokerStopsWholeAndKeepsItsTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	t.Parallel()
	recipe := foundation.Broker{
		Dir: filepath.Join(directory(t), "mq"), AMQPSPort: port(t), ManagementPort: port(t), DistPort: port(t), EPMDPort: port(t),
		AdminUser: "root", AdminPassword: "p:ss/w@rd", ConsumerTimeout: 3 * time.Hour,
	}
	var fingerprint string
	recipe.CertPEM, recipe.KeyPEM, fingerprint = certificate(t)
	if err := recipe.Init(deadline(t)); err != nil {
		t.Fatal(err)
	}
	command, err := recipe.Command()
	process, stop := supervise(t, command, err)
	if err := recipe.WaitReady(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if timeout, err := recipe.ReadConsumerTimeout(deadline(t)); err != nil || timeout != 3*time.Hour {
		t.Errorf("the acknowledgement timeout in force is %s: %v", timeout, err)
	}
	u, err := url.Parse(recipe.URL(recipe.AdminUser, recipe.AdminPassword))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", u.Host, pki.ClientConfig(fingerprint))
	if err != nil {
		t.Errorf("TLS with the pin given: %v", err)
	} else {
		conn.Close()
	}
	text, err := os.ReadFile(recipe.PidFile())
	if err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(process.Pid) {
		t.Errorf("pid file says %q, the process is %d: %v", text, process.Pid, err)
	}
	// Nothing listens beyond the loopback address, the Erlang ports included.
	if out, err := exec.Command("ss", "-Hltnp").CombinedOutput(); err == nil {
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "pid="+strconv.Itoa(process.Pid)+",") && !strings.Contains(line, "127.0.0.1:") {
				t.Errorf("listens elsewhere: %s", line)
			}
		}
	}
	stop(syscall.SIGTERM)
	closed(t, recipe.EPMDPort)

	_, kill := supervise(t, command, nil)
	if err := recipe.WaitReady(deadline(t)); err != nil {
		t.Fatal(err)
	}
	kill(syscall.SIGKILL)
	closed(t, recipe.EPMDPort)
	closed(t, recipe.AMQPSPort)
}

func TestRecipesSayWhatTheyMiss(t *testing.T) {
	t.Parallel()
	if err := (foundation.Postgres{Dir: t.TempDir()}).Init(deadline(t)); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("PostgreSQL without a password: %v", err)
	}
	broker := foundation.Broker{Dir: t.TempDir(), AdminUser: "a", AdminPassword: "b"}
	if err := broker.Init(deadline(t)); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("RabbitMQ without a certificate: %v", err)
	}
	broker.AdminUser = ""
	if err := broker.Init(deadline(t)); err == nil || !strings.Contains(err.Error(), "administrator") {
		t.Errorf("RabbitMQ without an administrator: %v", err)
	}
}
