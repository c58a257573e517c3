package clone_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/internal/testenv"
)

// childEnvironment makes this binary a process that clones and packs, and nothing else, so that
// it can be killed and its memory measured.
const childEnvironment = "MESH_TEST_CLONE"

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnvironment); url != "" {
		if err := cloneAndPack(url, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Run(m)
}

func cloneAndPack(url, dir string) error {
	c, err := clone.Get(context.Background(), clone.Request{Repository: url, Directory: dir})
	if err != nil {
		return err
	}
	defer c.Close()
	entries, err := c.Entries("")
	if err != nil {
		return err
	}
	digest := sha256.New()
	if err := archive.Pack(digest, entries); err != nil {
		return err
	}
	fmt.Printf("%d files, sha256:%x\n", len(entries), digest.Sum(nil))
	return nil
}

// child is this binary as a process that clones url into dir and packs it.
func child(t testing.TB, url, dir string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, dir)
	cmd.Env = append(os.Environ(), childEnvironment+"="+url)
	return cmd
}
