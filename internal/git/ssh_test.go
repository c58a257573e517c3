package git_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestSSHReadsWithItsKeyAndPinnedHostKeyAlone(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("file", "x")
	first := repo.Commit("first")
	repo.Run("tag", "--annotate", "--message", "one", "v1")
	repo.Write("file", "y")
	second := repo.Commit("second")
	server := testenv.GitSSH(t, filepath.Dir(repo.Bare))
	c := client(t, git.Config{})
	url := server.URL("repo.git")
	for ref, want := range map[string]git.Head{
		"":     {Ref: "refs/heads/main", Commit: second},
		"v1":   {Ref: "refs/tags/v1", Commit: first}, // a server over ssh gives the tag only
		first:  {Ref: "refs/tags/v1", Commit: first},
		second: {Ref: "refs/heads/main", Commit: second},
	} {
		commit, err := c.Fetch(t.Context(), url, ref, server.Credential())
		if err != nil || commit.Head != want {
			t.Fatalf("%q: %+v, %v, want %+v", ref, commit, err, want)
		}
		if err := commit.Close(); err != nil {
			t.Error(err)
		}
	}
	ask := func(url string, change func(*git.Credential)) error {
		credential := server.Credential()
		change(credential)
		_, err := c.LsRemote(t.Context(), url, "", credential)
		return err
	}
	other := testenv.GitSSH(t, t.TempDir())
	for name, x := range map[string]struct {
		url    string
		want   git.Reason
		change func(*git.Credential)
	}{
		"second host key":     {url, "", func(c *git.Credential) { c.HostKeys = server.HostKeys[1:] }},
		"both host keys":      {url, "", func(c *git.Credential) { c.HostKeys = server.HostKeys }},
		"line of known_hosts": {url, "", func(c *git.Credential) { c.HostKeys = []string{"example.org " + server.HostKeys[0]} }},
		"other host key":      {url, git.HostKeyUnknown, func(c *git.Credential) { c.HostKeys = other.HostKeys }},
		"no host key":         {url, git.HostKeyUnknown, func(c *git.Credential) { c.HostKeys = nil }},
		"unreadable host key": {url, git.HostKeyUnknown, func(c *git.Credential) { c.HostKeys = []string{"x"} }},
		"other private key":   {url, git.AuthenticationFailed, func(c *git.Credential) { c.PrivateKey = other.Credential().PrivateKey }},
		"no private key":      {url, git.AuthenticationFailed, func(c *git.Credential) { c.PrivateKey = "" }},
		"unreadable key":      {url, git.AuthenticationFailed, func(c *git.Credential) { c.PrivateKey = "x" }},
		"other user":          {url, git.AuthenticationFailed, func(c *git.Credential) { c.User = "somebody" }},
		"no such repository":  {server.URL("none.git"), git.RepositoryNotFound, func(*git.Credential) {}},
		"quotes in the path":  {server.URL("it's.git"), git.RepositoryNotFound, func(*git.Credential) {}},
		"nobody at the port":  {"ssh://git@127.0.0.1:1/x", git.Unreachable, func(*git.Credential) {}},
		"not an ssh server":   {"ssh://git@" + strings.TrimPrefix(strings.Split(repo.URL(), "/repo")[0], "http://") + "/x", git.Unreachable, func(*git.Credential) {}},
	} {
		if err := ask(x.url, x.change); git.ReasonOf(err) != x.want {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}
