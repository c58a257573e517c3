package git_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/testenv"
)

// remote is one way to a repository.
type remote struct {
	name, url  string
	credential *git.Credential
}

// remotes are a repository's file, and real git servers over HTTP with a password and over ssh.
func remotes(t *testing.T, repo *testenv.Repo) []remote {
	t.Helper()
	const password = "canary-word"
	url := repo.URLBehind(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if user, given, _ := r.BasicAuth(); user != "somebody" || given != password {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you", http.StatusUnauthorized)
			return nil
		}
		return w
	})
	server := testenv.GitSSH(t, filepath.Dir(repo.Bare))
	return []remote{
		{"file", "file://" + repo.Bare, nil},
		{"http", url, &git.Credential{User: "somebody", Password: password}},
		{"ssh", server.URL(filepath.Base(repo.Bare)), server.Credential()},
	}
}

// stands checks where a ref is and that the commit there can be had, over every way.
type stands struct {
	*testing.T
	client  *git.Client
	remotes []remote
}

func zoo(t *testing.T, repo *testenv.Repo) stands {
	return stands{t, client(t, git.Config{}), remotes(t, repo)}
}

func (s stands) at(when, ref, name, commit string) {
	s.Helper()
	want := git.Head{Ref: name, Commit: commit}
	for _, r := range s.remotes {
		head, err := s.client.LsRemote(s.Context(), r.url, ref, r.credential)
		if err != nil || head.Commit != commit || head.Ref != "" && head.Ref != name {
			s.Errorf("%s, %s: ref %q is %+v, %v; want %+v", when, r.name, ref, head, err, want)
		}
		got, err := s.client.Fetch(s.Context(), r.url, ref, r.credential)
		if err != nil || got.Head != want {
			s.Errorf("%s, %s: fetching %q gave %+v, %v; want %+v", when, r.name, ref, got, err, want)
			continue
		}
		if err := got.Close(); err != nil {
			s.Error(err)
		}
	}
}

func (s stands) not(when, ref string, reason git.Reason) {
	s.Helper()
	for _, r := range s.remotes {
		_, err := s.client.Fetch(s.Context(), r.url, ref, r.credential)
		if git.ReasonOf(err) != reason {
			s.Errorf("%s, %s: ref %q: %v, want %s", when, r.name, ref, err, reason)
		}
	}
}

func TestZooForcePushAndTheOldTipCollected(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("file", "old")
	old := repo.Commit("old")
	s := zoo(t, repo)
	s.at("before", "main", "refs/heads/main", old)
	repo.Write("file", "new")
	repo.Run("commit", "--quiet", "--all", "--amend", "--message", "new")
	changed := repo.Run("rev-parse", "HEAD")
	repo.Run("reflog", "expire", "--expire=now", "--all")
	repo.Run("gc", "--quiet", "--prune=now")
	s.at("after", "main", "refs/heads/main", changed)
	s.not("collected", old, git.RefNotFound)
}

func TestZooBranchesComeAndGo(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	s := zoo(t, repo)
	s.not("nothing pushed", "", git.EmptyRepository)
	s.not("nothing pushed", "main", git.EmptyRepository)
	repo.Write("file", "1")
	first := repo.Commit("first")
	s.at("first push", "", "refs/heads/main", first)
	repo.Run("branch", "side")
	repo.Write("file", "2")
	second := repo.Commit("second")
	s.at("two branches", "side", "refs/heads/side", first)
	repo.Run("branch", "-D", "side")
	s.not("deleted", "side", git.RefNotFound)
	repo.Run("branch", "side")
	s.at("recreated", "side", "refs/heads/side", second)
	repo.Run("branch", "-m", "main", "trunk")
	s.at("default branch renamed", "", "refs/heads/trunk", second)
	s.not("default branch renamed", "main", git.RefNotFound)
	repo.Run("symbolic-ref", "HEAD", "refs/heads/gone")
	s.not("HEAD dangles", "", git.RefNotFound)
	s.at("HEAD dangles", "trunk", "refs/heads/trunk", second)
	repo.Run("update-ref", "--no-deref", "HEAD", first)
	s.at("HEAD detached", "", "refs/heads/side", first)
}

func TestZooTagsMoveAndCommitsArePinned(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("file", "1")
	first := repo.Commit("first")
	repo.Run("tag", "light")
	repo.Run("tag", "--annotate", "--message", "x", "noted")
	repo.Run("tag", "--annotate", "--message", "x", "nested", "noted")
	repo.Run("tag", "tree", "HEAD^{tree}")
	repo.Write("file", "2")
	second := repo.Commit("second")
	repo.Run("checkout", "--quiet", "--detach")
	repo.Write("file", "tagged only")
	below := repo.Commit("below a tag")
	repo.Write("file", "tagged only, twice")
	repo.Commit("at a tag")
	repo.Run("tag", "apart")
	repo.Run("checkout", "--quiet", "main")
	s := zoo(t, repo)
	for _, tag := range []string{"light", "noted", "nested"} {
		s.at("before", tag, "refs/tags/"+tag, first)
	}
	s.not("a tree's", "tree", git.RefNotFound)
	s.at("a tip", second, "refs/heads/main", second)
	s.at("below a tag", below, "refs/tags/apart", below)
	s.not("nowhere", strings.Repeat("1", 40), git.RefNotFound)
	repo.Run("tag", "--delete", "light", "noted", "nested")
	s.at("the tip of nothing", first, "refs/heads/main", first)
	repo.Run("tag", "light")
	repo.Run("tag", "--annotate", "--message", "x", "noted")
	for _, tag := range []string{"light", "noted"} {
		s.at("moved", tag, "refs/tags/"+tag, second)
	}
}

// A ref that is forced away between the question and the fetch is asked for again, and what
// is got is what is there then.
func TestZooRefMovesBetweenQuestionAndFetch(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("file", "1")
	old := repo.Commit("old")
	var moves atomic.Int32
	moves.Store(2) // requests: the refs, then the pack
	url := repo.URLBehind(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if left := moves.Add(-1); r.Method == http.MethodPost && left >= 0 {
			repo.Run("commit", "--quiet", "--amend", "--message", fmt.Sprint("new ", left))
			repo.Run("reflog", "expire", "--expire=now", "--all")
			repo.Run("gc", "--quiet", "--prune=now")
		}
		return w
	})
	c := client(t, git.Config{})
	got, err := c.Fetch(t.Context(), url, "main", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Commit == old || got.Commit != repo.Run("rev-parse", "main") {
		t.Errorf("got %s, the old one is %s", got.Commit, old)
	}
	moves.Store(100)
	if _, err := c.Fetch(t.Context(), url, "main", nil); git.ReasonOf(err) != git.RefNotFound || !strings.Contains(err.Error(), "moves faster") {
		t.Errorf("a ref that never stands still: %v", err)
	}
}
