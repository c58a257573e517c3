package toolchain

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/mesh-control/mesh/builder/lines"
)

// process is one command of a [Host]. It is a process group that ends with the context, and
// with us; what left the group ends with it too.
type process struct {
	program string
	args    []string
	dir     string
	env     []string
	network bool
}

// isolation takes the network away from a process: a network namespace of its own, with a
// user namespace around it for whoever is not root. Nil where the machine allows neither.
var isolation = sync.OnceValue(func() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = attr
	if cmd.Run() != nil {
		return nil
	}
	return attr
})

func (p process) run(ctx context.Context, log func(string)) error {
	cmd := exec.CommandContext(ctx, p.program, p.args[1:]...)
	mark := markName + "=" + rand.Text()
	cmd.Dir, cmd.Env = p.dir, append(slices.Clip(p.env), mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if apart := isolation(); apart != nil && !p.network {
		*cmd.SysProcAttr = *apart
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	said := &lines.Writer{Say: log}
	cmd.Stdout, cmd.Stderr = said, said
	// The death signal is bound to the thread that starts the process.
	runtime.LockOSThread()
	err := cmd.Start()
	if err == nil {
		// Where memory is short it goes before anything that was here already.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("1000"), 0)
		err = cmd.Wait()
	}
	runtime.UnlockOSThread()
	// What the command left running ends with it.
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		endMarked(mark)
	}
	said.Flush()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &exitError{program: p.args[0], status: int64(exit.ExitCode())}
	}
	return err
}

// markName is the variable by which the processes of a step are known: children have it from
// their parents, in whatever group or session they are.
const markName = "MESH_STEP"

// endMarked kills every process that has the mark in its environment, and those it started
// meanwhile.
func endMarked(mark string) {
	for range 100 { // more generations than that are somebody else's trouble
		found, _ := filepath.Glob("/proc/[0-9]*/environ")
		alive := false
		for _, name := range found {
			environment, err := os.ReadFile(name)
			if err != nil || !slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(v []byte) bool { return string(v) == mark }) {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				alive = true
			}
		}
		if !alive {
			return
		}
	}
}
