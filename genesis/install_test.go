package genesis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mesh-control/mesh/genesis"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// programs compiles the mesh's programs as the Makefile does.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", dir + "/"}
	for _, name := range []string{"mesh-host", "mesh-registry", "mesh-controller", "mesh-catalogue", "mesh-builder", "mesh-genesis"} {
		args = append(args, "../cmd/"+name)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile the programs: %v\n%s", err, out)
	}
	return dir
}

// reachable is a directory that PostgreSQL's account can reach, which t.TempDir is not.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "gen")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// breaker is what an installer prints to; it breaks the installation off when a phase has
// been reported.
type breaker struct {
	mu    sync.Mutex
	text  bytes.Buffer
	after string
	off   context.CancelFunc
}

func (b *breaker) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.after != "" && strings.Contains(string(p), b.after) {
		b.off()
	}
	return b.text.Write(p)
}

func (b *breaker) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

var phases = []string{"preflight", "keys", "foundation", "database", "carry", "source", "init build", "hand-over", "watch", "builder", "proof"}

// A whole installation on this machine: broken off after each of its phases, it goes on where
// it was; complete, it changes nothing when run again; uninstalled, nothing of it is left.
func TestInstallGoesOnAfterAnyEndAndLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("raises a whole mesh: servers, three builds, an engine")
	}
	if os.Getuid() != 0 {
		t.Skip("the foundation's servers take accounts of their own, which takes root")
	}
	engine := testenv.Engine(t)
	if _, err := net.InterfaceByName("docker0"); err != nil {
		t.Skip("the engine has no bridge, over which containers would reach the mesh")
	}
	dir, bin := reachable(t), programs(t)
	installer := func(out *breaker) *genesis.Installer {
		return &genesis.Installer{Dir: dir, Mesh: "gen", Node: "g1", Engine: engine, Source: "..", Programs: bin, Out: out}
	}
	gone := false
	t.Cleanup(func() {
		if gone {
			return
		}
		var out breaker
		if err := genesis.Uninstall(context.Background(), dir, &out); err != nil {
			t.Errorf("uninstall: %v\n%s", err, out.String())
		}
	})
	for _, phase := range phases[:len(phases)-1] {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		out := &breaker{after: fmt.Sprintf(" %-11s", phase), off: cancel}
		err := installer(out).Install(ctx)
		cancel()
		if err == nil || !errors.Is(err, context.Canceled) {
			t.Fatalf("broken off after %s it said %v\n%s", phase, err, out)
		}
	}
	whole := &breaker{}
	if err := installer(whole).Install(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, whole)
	}
	for _, component := range []string{"controller", "catalogue", "builder"} {
		if !strings.Contains(whole.String(), "ok    "+component) {
			t.Errorf("%s is not proved:\n%s", component, whole)
		}
	}
	again := &breaker{}
	if err := installer(again).Install(t.Context()); err != nil {
		t.Fatalf("again: %v\n%s", err, again)
	}
	if !strings.Contains(again.String(), "the mesh builds itself") {
		t.Errorf("a second run builds again:\n%s", again)
	}
	proof := &breaker{}
	if err := installer(proof).Verify(t.Context()); err != nil {
		t.Errorf("verify: %v\n%s", err, proof)
	}
	var out breaker
	if err := genesis.Uninstall(t.Context(), dir, &out); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out.String())
	}
	gone = true
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		if entry.Name() != "carried" { // a cache, kept for the next
			t.Errorf("%s is left", filepath.Join(dir, entry.Name()))
		}
	}
	if processes := ours(t, dir); len(processes) > 0 {
		t.Errorf("processes are left: %v", processes)
	}
}

// ours lists the processes whose command line names dir.
func ours(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err == nil && bytes.Contains(text, []byte(dir)) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

func TestPreflightReportsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	in := &genesis.Installer{
		Dir: t.TempDir(), Mesh: "gen", Node: "g1", Address: "nowhere", Engine: "unix:///nonexistent.sock", Source: "..", Programs: t.TempDir(), Out: &breaker{},
	}
	err := in.Install(t.Context())
	if err == nil {
		t.Fatal("nothing is wrong, it says")
	}
	for _, want := range []string{`"nowhere"`, "--address", "/nonexistent.sock", "mesh-host is not in", "mesh-controller is not in"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said:\n%v", want, err)
		}
	}
}

func TestUninstallOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	if err := genesis.Uninstall(t.Context(), t.TempDir(), &breaker{}); err == nil || !strings.Contains(err.Error(), "no installation") {
		t.Errorf("it said %v", err)
	}
}
