package main

import (
	"io/fs"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/testenv"
)

const (
	throttledSize  = 200 << 20 // bytes of history
	throttledPace  = 200 << 20 // bytes a second
	throttledKills = 20
)

// link is a slow one, which does something at a byte.
type link struct {
	http.ResponseWriter
	opened time.Time
	sent   int64
	at     int64
	then   func()
}

func (l *link) Write(p []byte) (int, error) {
	if ahead := time.Duration(l.sent)*time.Second/throttledPace - time.Since(l.opened); ahead > 10*time.Millisecond {
		time.Sleep(ahead)
	}
	n, err := l.ResponseWriter.Write(p)
	if l.sent += int64(n); l.sent >= l.at && l.sent-int64(n) < l.at {
		l.then()
	}
	return n, err
}

// below lists what lies in directories, by name.
func below(t *testing.T, dirs ...string) (names []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			names = append(names, name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// Each builder is killed when another twentieth of the history has come through the link, the
// last when all of it has. None of them leaves anything that the one after it does not remove.
func TestACloneOverAThrottledLinkKilledTwentyTimesLeavesTheDiskAsItWas(t *testing.T) {
	if testing.Short() {
		t.Skip("some 2 GiB come through the link")
	}
	repo := testenv.Git(t)
	// It is random: nothing to compress, and nothing alike to look for.
	repo.Run("config", "core.compression", "0")
	repo.Run("config", "pack.window", "0")
	repo.Write("m/module.json", `{"name": "m", "artifacts": {"site": {"kind": "archive", "path": "site"}},
  "resources": [{"id": "site", "type": "archive", "artifact": "site", "path": "/srv/site"}]}`)
	repo.Write("m/site/index.html", "<p>hello</p>\n")
	random := rand.NewChaCha8([32]byte{})
	text := make([]byte, throttledSize/20)
	for file := range 20 {
		_, _ = random.Read(text)
		repo.Write("history/"+strconv.Itoa(file), string(text))
		repo.Commit("more")
	}
	var at int64
	then := func() {}
	url := repo.URLBehind(func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
		return &link{ResponseWriter: w, opened: time.Now(), at: at, then: then}
	})
	work, temporary := t.TempDir(), t.TempDir()
	build := func(url string) *program {
		return start(t, "run", "022", []string{"TMPDIR=" + temporary}, "build", url, "m", "--work", work, "--name", "one")
	}
	if small := build(repo.URL()); small.cmd.Wait() != nil {
		t.Fatalf("the first build failed:\n%s", small.log)
	}
	baseline := below(t, work, temporary)

	for kill := range throttledKills {
		reached := make(chan struct{})
		at, then = throttledSize/throttledKills*int64(kill+1), func() { close(reached) }
		p := build(url)
		select {
		case <-reached:
		case <-time.After(buildertest.Patience):
			t.Fatalf("%d bytes never came through the link\n%s", at, p.log)
		}
		p.kill()
		if left := below(t, filepath.Join(work, "builds"))[1:]; kill < throttledKills-1 && len(left) == 0 {
			t.Error("nothing was under way when it was killed")
		} else if builds := slices.DeleteFunc(left, func(name string) bool { return filepath.Base(filepath.Dir(name)) != "builds" }); len(builds) > 1 {
			t.Errorf("what %d killed builders left adds up: %v", kill+1, builds)
		}
	}
	at = 0
	if last := build(url); last.cmd.Wait() != nil {
		t.Fatalf("the build after the last kill failed:\n%s", last.log)
	}
	if left := below(t, work, temporary); !slices.Equal(left, baseline) {
		t.Errorf("left over: %v, want %v", left, baseline)
	}
}
