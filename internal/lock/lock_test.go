package lock_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/lock"
)

func TestOneHolderAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lock.Exclusive(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exclusive(path); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("a second holder got %v, want %v", err, lock.ErrHeld)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := lock.Exclusive(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
}

// TestACopyThatGoesAwaySoonIsWaitedFor holds the lock a moment longer than its holder lives, as a
// child does between fork and exec.
func TestACopyThatGoesAwaySoonIsWaitedFor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	holder, err := lock.Exclusive(path)
	if err != nil {
		t.Fatal(err)
	}
	descriptor, err := syscall.Dup(int(holder.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	copied := os.NewFile(uintptr(descriptor), "copy")
	_ = holder.Close()
	time.AfterFunc(200*time.Millisecond, func() { _ = copied.Close() })
	next, err := lock.Exclusive(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = next.Close()
}

func TestADirectoryIsNoLock(t *testing.T) {
	t.Parallel()
	if _, err := lock.Exclusive(t.TempDir()); err == nil || errors.Is(err, lock.ErrHeld) {
		t.Fatalf("got %v, want what is wrong with the path", err)
	}
}
