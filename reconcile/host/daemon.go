package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// runner is the process of a running host, as its file says.
type runner struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
}

const pidFile = "host.pid"

// RecordProcess writes down this process as the host of the state directory, so that
// [StopRunning] finds it. forget takes that back.
func (h *Host) RecordProcess() (forget func(), err error) {
	start, err := startTicks(os.Getpid())
	if err != nil {
		return nil, err
	}
	name := h.layout.state(pidFile)
	if err := writeJSON(name, runner{Pid: os.Getpid(), Start: start}); err != nil {
		return nil, err
	}
	return func() { _ = os.Remove(name) }, nil
}

// StopRunning ends the host that runs on layout, and only the host. It returns its pid, 0
// when none runs.
func StopRunning(ctx context.Context, layout Layout) (int, error) {
	var r runner
	err := readJSON(layout.state(pidFile), &r)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	alive := func() bool {
		now, err := startTicks(r.Pid)
		return err == nil && now == r.Start
	}
	if !alive() {
		return 0, os.Remove(layout.state(pidFile))
	}
	if err := syscall.Kill(r.Pid, syscall.SIGTERM); err != nil {
		return 0, fmt.Errorf("stop host %d: %w", r.Pid, err)
	}
	for alive() {
		select {
		case <-ctx.Done():
			if err := syscall.Kill(r.Pid, syscall.SIGKILL); err != nil && alive() {
				return 0, fmt.Errorf("stop host %d: %w", r.Pid, err)
			}
			return r.Pid, nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	return r.Pid, nil
}

// WaitRunning waits until the host on layout answers.
func WaitRunning(ctx context.Context, layout Layout) error {
	for {
		var report map[string]any
		err := Ask(ctx, layout, "GET", "/status", nil, &report)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// LogFile is where a host that was detached writes.
func (l Layout) LogFile() string { return l.state("host.log") }

// ConfigFile is where a host looks for its configuration when told no other place.
func (l Layout) ConfigFile() string { return l.state("config.json") }
