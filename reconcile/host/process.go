package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Program is a service's process to be, in this machine's names.
type Program struct {
	Exec      string   `json:"exec"`
	Args      []string `json:"args,omitempty"`
	Env       []string `json:"env,omitempty"`
	User      string   `json:"user,omitempty"`
	Directory string   `json:"directory,omitempty"`
	Restart   string   `json:"restart,omitempty"`
	// StopSignal asks it to end; "" is SIGTERM.
	StopSignal string `json:"stopSignal,omitempty"`
	// StopTimeout in seconds, before the process is killed; 0 is 10.
	StopTimeout int `json:"stopTimeout,omitempty"`
}

// process is a running program: a child, or one that an earlier life of the host started.
type process struct {
	pid   int
	start uint64 // clock ticks after boot, which with the pid names a process for good
	exit  chan int
	held  *holder // of one that was started here, until it runs its program
}

// noExit stands for an exit nobody could see: the process was not a child.
const noExit = -1

// holdProcess makes the process of a program, held back until it is released: so that it can
// be recorded before it does anything. It is in a session of its own, so that nothing that ends
// the host ends it, with its output appended to log.
func holdProcess(p Program, log string) (*process, error) {
	if !filepath.IsAbs(p.Exec) {
		return nil, fmt.Errorf("%s: the program has to be an absolute path", p.Exec)
	}
	if info, err := os.Stat(p.Exec); err != nil {
		return nil, fmt.Errorf("the program does not exist: %w", err)
	} else if info.IsDir() || info.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("%s is not a program", p.Exec)
	}
	if err := os.MkdirAll(filepath.Dir(log), 0o700); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	as := standing{Directory: p.Directory}
	if p.User != "" {
		if as.Credential, err = credential(p.User); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(p.Exec, p.Args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.Env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	held, err := start(cmd, as)
	if err != nil {
		return nil, err
	}
	proc := &process{pid: cmd.Process.Pid, exit: make(chan int, 1), held: held}
	proc.start, _ = startTicks(proc.pid)
	go func() {
		_ = cmd.Wait()
		proc.exit <- exitCode(cmd.ProcessState)
	}()
	return proc, nil
}

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

func credential(name string) (*syscall.Credential, error) {
	by, err := parseOwner(name)
	if err != nil {
		return nil, err
	}
	cred := &syscall.Credential{Uid: uint32(by.uid), Gid: uint32(by.gid)} //nolint:gosec // from the user database
	if found, err := user.LookupId(strconv.Itoa(by.uid)); err == nil {
		groups, _ := found.GroupIds()
		for _, g := range groups {
			if id, err := strconv.ParseUint(g, 10, 32); err == nil {
				cred.Groups = append(cred.Groups, uint32(id))
			}
		}
	}
	return cred, nil
}

// adoptProcess takes over a process by pid and start time. It fails when that process is gone,
// whatever has its pid now.
func adoptProcess(ctx context.Context, pid int, start uint64) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	// Looked at after the descriptor is open, so that both are of the same process.
	if now, err := startTicks(pid); err != nil || now != start {
		unix.Close(fd)
		return nil, errors.New("the process is gone")
	}
	proc := &process{pid: pid, start: start, exit: make(chan int, 1)}
	file := os.NewFile(uintptr(fd), "pidfd") //nolint:gosec // a descriptor
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	go func() {
		defer stop()
		defer file.Close()
		if raw, err := file.SyscallConn(); err == nil {
			err = raw.Read(func(fd uintptr) bool {
				polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
				n, err := unix.Poll(polled, 0)
				return err == nil && n > 0
			})
			if err == nil {
				proc.exit <- noExit
			}
		}
	}()
	return proc, nil
}

// startTicks is when a process started, in clock ticks since boot; zombies count as gone.
func startTicks(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command's name, in parentheses, may hold anything.
	_, rest, _ := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, fmt.Errorf("read /proc/%d/stat: too short", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// signal reaches the whole session's process group, and only while it is the same process.
func (p *process) signal(s syscall.Signal) {
	if now, err := startTicks(p.pid); err == nil && now == p.start {
		_ = syscall.Kill(-p.pid, s)
	}
}

// bootID tells one boot from the next.
func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}
