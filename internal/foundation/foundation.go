// Package foundation holds the recipes of the two servers the mesh stands on: how a
// PostgreSQL cluster and a RabbitMQ node are laid out in a directory of their own, and with
// which program, arguments and environment each runs in the foreground.
//
// A recipe is a value. Init writes what the server needs and may be repeated: what exists
// already is left alone, configuration is written afresh. Command gives one program to
// supervise; its process is the server itself, so signals reach it, SIGTERM stops it in
// order, and nothing it started outlives it. WaitReady returns once the server answers a
// client, not merely once its port is open.
//
// The recipes take nothing from the machine but the programs: not its configuration, data,
// ports or running servers. Two recipes with different directories and ports do not meet.
package foundation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Command is one program to run in the foreground.
type Command struct {
	Exec string
	Args []string // without the program's own name
	Env  []string // the whole environment, as KEY=value
	Dir  string
	User string // account to run as; "" is the caller's
	// StopSignal ends it in order; "" is SIGTERM.
	StopSignal string
}

// Cmd makes c ready to start, in a process group of its own. Running as another account
// needs root.
func (c Command) Cmd(ctx context.Context) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, c.Exec, c.Args...)
	cmd.Env, cmd.Dir = c.Env, c.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	credential, err := credentialOf(c.User)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.Credential = credential
	return cmd, nil
}

// credentialOf is nil when name is the caller's own account already.
func credentialOf(name string) (*syscall.Credential, error) {
	if name == "" {
		return nil, nil
	}
	account, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("look up account %s: %w", name, err)
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read uid of %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("read gid of %s: %w", name, err)
	}
	if int(uid) == os.Geteuid() {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("run as %s: only root can run programs as another account", name)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// own makes dir, private to the account name.
func own(dir, name string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	return chown(dir, name)
}

func chown(path, name string) error {
	credential, err := credentialOf(name)
	if err != nil || credential == nil {
		return err
	}
	if err := os.Lchown(path, int(credential.Uid), int(credential.Gid)); err != nil {
		return fmt.Errorf("give %s to %s: %w", path, name, err)
	}
	return nil
}

// write replaces path at once, readable by the account name only.
func write(path string, data []byte, mode fs.FileMode, name string) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(temporary.Name()) // fails once renamed
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Close())
	if err == nil {
		err = chown(temporary.Name(), name)
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// newest is the match of pattern with the highest version in its path.
func newest(pattern, what, debianPackage string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", what, err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("find %s: nothing at %s; install it with: apt install %s", what, pattern, debianPackage)
	}
	return slices.MaxFunc(found, compareVersions), nil
}

// compareVersions orders by the numbers in two paths, so that 9 comes before 15.
func compareVersions(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }

func numbers(path string) []int {
	var all []int
	for _, field := range strings.FieldsFunc(path, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.Atoi(field); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// poll calls try until it succeeds or ctx ends, and then says what try said last.
func poll(ctx context.Context, what string, try func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
