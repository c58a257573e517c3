package registry_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mesh-control/mesh/registry/registrytest"
)

// smallDisk is a file system of two megabytes of its own.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system to fill")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves no byte of a file system free.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 16
		} else if err != nil {
			t.Error(err)
			return
		}
	}
}

// The disk of the registry is full from one request of a publication on, for each in turn:
// nothing resolves that names something missing or cut short, and doing it again works once
// there is room.
func TestS1_094_AFullDiskLeavesNothingThatNamesSomethingMissing(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(t testing.TB, dir string) *registrytest.Registry{
		"embedded":         func(t testing.TB, dir string) *registrytest.Registry { return registrytest.StartAt(t, dir) },
		"distribution-2.8": registrytest.StartDistributionAt,
	} {
		for what, prepare := range publications {
			if kind != "embedded" && what != "archive" {
				continue
			}
			t.Run(kind+"/"+what, func(t *testing.T) {
				t.Parallel()
				dir := smallDisk(t)
				p, store := prepare(t), start(t, dir)
				failed := 0
				for failing := range p.requests(t, store) {
					store.Empty(t)
					if fullFrom(t, store, p, failing+1) {
						failed++
					}
					if t.Failed() {
						t.Fatalf("full from request %d on", failing+1)
					}
				}
				if failed == 0 {
					t.Error("no publication failed: this test shows nothing")
				}
			})
		}
	}
}

// fullFrom says whether the publication failed.
func fullFrom(t *testing.T, store *registrytest.Registry, p publication, failing int) bool {
	front := newFront(t, store)
	defer front.Close()
	front.spoil = func(n int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if n == failing {
			fill(t, store.Dir)
		}
		pass.ServeHTTP(w, r)
	}
	_, err := p.run(t.Context(), p.fragile(t, front, store, 1))
	if err != nil && !strings.Contains(err.Error(), "registry answered 5") {
		t.Errorf("a full disk is told as %v", err)
	}
	if store.Process == nil { // 2.8 answers 500 to what it has cut short, which is no module
		checkWhole(t, store)
	}
	if gone := os.Remove(filepath.Join(store.Dir, "filler")); gone != nil {
		t.Error(gone)
	}
	again := p.again(t, store)
	if again != nil && store.Process != nil && strings.Contains(again.Error(), "remove the folder blobs/sha256/") {
		removeEmpty(t, store.Dir) // as the error says
		again = p.again(t, store)
	}
	if again != nil {
		t.Errorf("doing it again: %v", again)
	}
	return err != nil
}

// removeEmpty takes blobs without a byte out of a store.
func removeEmpty(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "docker/registry/v2/blobs/sha256/*/*/data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.Size() == 0 {
			if err := os.RemoveAll(filepath.Dir(file)); err != nil {
				t.Error(err)
			}
		}
	}
}
