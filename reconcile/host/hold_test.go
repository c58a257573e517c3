package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/reconcile/host"
)

func newSupervisor(t *testing.T) *host.Supervisor {
	t.Helper()
	s, err := host.NewSupervisor(host.NewLayout(t.TempDir()), testLog(t), func() {}, func(host.Point) {})
	check(t, err)
	t.Cleanup(s.Close)
	return s
}

// What waits to become a service is the host's own program, which the account of the service
// may not be able to execute.
func TestServiceRunsAsItsAccountAndWithNothingOfTheHosts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("another account takes root")
	}
	self, err := os.Executable()
	check(t, err)
	check(t, os.Chmod(self, 0o700))
	t.Cleanup(func() { _ = os.Chmod(self, 0o755) })
	s := newSupervisor(t)
	check(t, s.Start("m/s", "spec", "", host.Program{
		Exec: "/bin/sleep", Args: []string{"600"}, User: "nobody", Directory: "/usr", Env: []string{"ONLY=this"},
	}, nil))
	t.Cleanup(func() { check(t, s.Remove("m/s")) })
	proc := fmt.Sprintf("/proc/%d/", s.Status()["m/s"].Pid)
	status, err := os.ReadFile(proc + "status")
	check(t, err)
	if !strings.Contains(string(status), "Uid:\t65534\t65534\t65534\t65534\n") || !strings.Contains(string(status), "Gid:\t65534\t65534\t65534\t65534\n") {
		t.Errorf("it runs as\n%s", status)
	}
	for file, want := range map[string]string{"cmdline": "/bin/sleep\x00600\x00", "environ": "ONLY=this\x00"} {
		// The kernel lets go of the pipes a moment before these are there.
		eventually(t, file+" is its own", func() bool {
			got, err := os.ReadFile(proc + file)
			return err == nil && string(got) == want
		})
	}
	if got, err := os.Readlink(proc + "cwd"); err != nil || got != "/usr" {
		t.Errorf("it runs in %q: %v", got, err)
	}
	// The pipes it waited with are gone; what it opens by itself, its libraries, may be there.
	for _, file := range []string{"fd/3", "fd/4"} {
		if to, err := os.Readlink(proc + file); err == nil && strings.HasPrefix(to, "pipe:") {
			t.Errorf("it has %s open: %s", file, to)
		}
	}
}

func TestServiceThatCannotBeStartedSaysWhyAndLeavesNoProcess(t *testing.T) {
	t.Parallel()
	s := newSupervisor(t)
	dir := t.TempDir()
	nothing := filepath.Join(dir, "nothing")
	check(t, os.WriteFile(nothing, []byte("\x7fELF and no more"), 0o755))
	for want, program := range map[string]host.Program{
		"exec " + nothing + ": exec format error":           {Exec: nothing},
		"chdir " + dir + "/away: no such file or directory": {Exec: "/bin/sleep", Args: []string{"600"}, Directory: dir + "/away"},
	} {
		if err := s.Start("m/s", "spec", "", program, nil); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if status := s.Status()["m/s"]; status.Running || status.Pid != 0 || status.Err == nil {
			t.Errorf("status %+v", status)
		}
		if got := processes(program.Exec + "\x00" + strings.Join(program.Args, "\x00")); got != 0 {
			t.Errorf("%d processes of %s", got, program.Exec)
		}
	}
}
