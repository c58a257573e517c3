package clone_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/testenv"
)

// history fills a repository through git's own fast-import: files of size bytes each, half of
// them text that compresses, and commits that each change one file.
func history(t testing.TB, repo *testenv.Repo, files, size, commits int) {
	t.Helper()
	cmd := exec.Command("git", "fast-import", "--quiet")
	cmd.Env = append(os.Environ(), "GIT_DIR="+repo.Bare)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriterSize(stdin, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, size)
	write := func(file int) {
		for i := range content {
			content[i] = byte(random.Uint32())
		}
		if file%2 == 0 {
			for i := range content {
				content[i] = "etaoin shrdlu\n"[content[i]%14]
			}
		}
		fmt.Fprintf(w, "M 100644 inline d%d/e%d/f%d\ndata %d\n", file%50, file%500, file, size)
		_, _ = w.Write(content)
		_ = w.WriteByte('\n')
	}
	for commit := range commits {
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter Author <author@example.org> %d +0000\ndata 1\nx\n", 1_700_000_000+commit)
		if commit > 0 {
			write(commit % files)
			continue
		}
		for file := range files {
			write(file)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	repo.Run("repack", "--quiet", "-a", "-d")
}

// cost is what processes took: time, processor time, and the most memory one held, in bytes.
type cost struct {
	time, processor time.Duration
	memory          int64
}

// add runs a command and adds what it took.
func (c *cost) add(b *testing.B, cmd *exec.Cmd) {
	b.Helper()
	cmd.Stderr = os.Stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
	c.time += time.Since(began)
	c.processor += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	c.memory = max(c.memory, usage.Maxrss<<10)
}

// clones compares cloning and packing, in a process of its own, with git clone --depth 1 of
// the same repository in the same run.
func clones(b *testing.B, files, size, commits int) {
	repo := testenv.Git(b)
	history(b, repo, files, size, commits)
	url := repo.URL()
	var ours, gits cost
	for b.Loop() {
		ours.add(b, child(b, url, b.TempDir()))
		git := exec.Command("git", "clone", "--quiet", "--depth", "1", url, filepath.Join(b.TempDir(), "clone"))
		git.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
		gits.add(b, git)
	}
	b.ReportMetric(ours.time.Seconds()/float64(b.N), "s")
	b.ReportMetric(gits.time.Seconds()/float64(b.N), "s-git")
	b.ReportMetric(ours.time.Seconds()/gits.time.Seconds(), "of-git")
	b.ReportMetric(ours.processor.Seconds()/gits.processor.Seconds(), "of-git-cpu")
	b.ReportMetric(float64(ours.memory)/(1<<20), "MiB")
	b.ReportMetric(float64(gits.memory)/(1<<20), "MiB-git")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkCloneAndPack5000Files(b *testing.B) { clones(b, 5000, 8<<10, 500) }

// The large one: a pack of about 600 MB, 750 MB unpacked.
func BenchmarkCloneAndPack750MB(b *testing.B) { clones(b, 750, 1<<20, 2) }
