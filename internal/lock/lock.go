// Package lock keeps a directory for one process at a time.
package lock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrHeld says that another process holds the lock.
var ErrHeld = errors.New("another process holds it")

// grace is how long a lock may still be held by nobody who lives: a process that was killed while
// it started a child leaves a copy of its descriptor in that child until the child's program runs.
const grace = 2 * time.Second

// Exclusive takes the file at path, which it makes if it is missing, until the returned file is
// closed or this process ends. It fails with ErrHeld when another process keeps it.
func Exclusive(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(grace); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) //nolint:gosec // a descriptor
		switch {
		case err == nil:
			return file, nil
		case errors.Is(err, syscall.EINTR):
		case !errors.Is(err, syscall.EWOULDBLOCK):
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case time.Now().After(end):
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ErrHeld)
		}
	}
}
