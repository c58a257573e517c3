package builder_test

import (
	"fmt"
	"io"
	"iter"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/testenv"
)

const platform = "linux/" + runtime.GOARCH

func memory(name, text string) archive.Entry {
	return archive.Entry{Name: name, Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

func timeout() <-chan time.Time { return time.After(buildertest.Patience) }

// objects runs git on a repository with something to read, and gives what it printed.
func objects(t *testing.T, repo *testenv.Repo, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"--git-dir", repo.Bare}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(cmd.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commitFiles commits a module.json and the files of its archive, without a work tree.
func commitFiles(t *testing.T, repo *testenv.Repo, module string, files iter.Seq2[string, string]) {
	t.Helper()
	var stream strings.Builder
	write := func(name, text string) {
		fmt.Fprintf(&stream, "M 100644 inline %s\ndata %d\n%s\n", name, len(text), text)
	}
	stream.WriteString("commit refs/heads/main\ncommitter a <a@example.org> 0 +0000\ndata 0\n")
	write("module.json", module)
	for name, text := range files {
		write("a/"+name, text)
	}
	objects(t, repo, stream.String(), "fast-import", "--quiet")
}
