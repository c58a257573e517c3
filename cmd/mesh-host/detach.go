package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/host"
)

// detached starts this program again in a session of its own, writing to a log in the state
// directory, and waits until it answers.
func (o *options) detached(cmd *cobra.Command) error {
	if _, err := o.load(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	layout := o.layout()
	if err := os.MkdirAll(layout.State, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(layout.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	child := exec.Command(self, "run", "--root", o.root, "--config", o.config, "--name", o.name)
	child.Stdout, child.Stderr, child.Dir = log, log, "/"
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start host: %w", err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
	defer cancel()
	died := make(chan error, 1)
	go func() { died <- child.Wait(); cancel() }()
	if err := host.WaitRunning(ctx, layout); err != nil {
		select {
		case why := <-died:
			return fmt.Errorf("the host ended at once (%w); its last words are in %s", why, layout.LogFile())
		default:
			return fmt.Errorf("the host does not answer; see %s: %w", layout.LogFile(), err)
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "host %d runs, log %s\n", child.Process.Pid, layout.LogFile())
	return nil
}
