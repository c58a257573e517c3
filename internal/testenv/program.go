package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Program is the path of the static program of the Go package in dir, which may be of another
// module. It is compiled once in a test binary, and goes with it.
func Program(t testing.TB, dir string) string {
	t.Helper()
	absolute, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	made, _ := servers.programs.LoadOrStore(absolute, sync.OnceValues(func() (string, error) { return compile(absolute) }))
	program, err := made.(func() (string, error))()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return program
}

func compile(dir string) (string, error) {
	out, err := servers.dir("program")
	if err != nil {
		return "", err
	}
	program := filepath.Join(out, filepath.Base(dir))
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s: %w\n%s", dir, err, said)
	}
	return program, nil
}
