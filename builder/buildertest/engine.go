package buildertest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder/engine"
)

func answers(ctx context.Context, host string) bool {
	e, err := engine.Open(host, "test")
	if err != nil {
		return false
	}
	defer e.Close()
	return e.Ping(ctx) == nil
}

// PrivateEngine starts an engine with images, containers and socket of its own. It has a
// network namespace of its own, too: an engine told to have no bridge takes away the one it
// finds. It ends with the test.
func PrivateEngine(t testing.TB) string {
	t.Helper()
	dockerd, err := exec.LookPath("dockerd")
	if err != nil || os.Getuid() != 0 {
		t.Skip("a container engine of its own takes dockerd and root")
	}
	// Not t.TempDir: the path of a socket must be short.
	dir, err := os.MkdirTemp("", "eng")
	if err != nil {
		t.Fatal(err)
	}
	host := "unix://" + filepath.Join(dir, "s")
	cmd := exec.Command(dockerd, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", host, "--bridge", "none", "--iptables=false", "--ip-masq=false")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it ends its containerd
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove engine: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for !answers(ctx, host) {
		select {
		case <-ended:
			t.Skipf("no container engine can be started here: %s", log.String())
		case <-ctx.Done():
			t.Fatal("container engine does not answer")
		case <-ticker.C:
		}
	}
	return host
}
