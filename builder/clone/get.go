package clone

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/giturl"
)

// Request says what to bring. Repository is what the job names; From, when set, is the
// local directory to read it from instead and needs AllowLocal. Directory is the build's
// own and must exist.
type Request struct {
	Repository string
	From       string
	Ref        string // "" is the remote's HEAD; a short name, a full one, or 40 hex
	Directory  string
	Credential *git.Credential // nil is none
	AllowLocal bool
	Limit      int64 // bytes fetched at most; 0 is the default of package git
}

// Clone is one commit, with its objects.
type Clone struct {
	Ref    string // full name
	Commit string
	root   *object.Tree
	commit *git.Commit
}

// Get brings the commit the ref stands for now.
func Get(ctx context.Context, req Request) (*Clone, error) {
	from := req.Repository
	if req.From != "" {
		from = req.From
	}
	if !req.AllowLocal && isLocal(from) {
		return nil, fail(ReasonLocal, "give the repository's URL (https:// or ssh://), or start mesh-builder by hand to build a directory",
			"repository %s is a path on this machine, and this builder does not see its node's files", from)
	}
	client, err := git.New(git.Config{Dir: req.Directory, MaxBytes: req.Limit})
	if err != nil {
		return nil, fmt.Errorf("prepare git: %w", err)
	}
	defer client.Close()
	commit, err := client.Fetch(ctx, from, req.Ref, req.Credential)
	if err != nil {
		return nil, explain(err)
	}
	root, err := object.GetTree(commit.Objects, commit.Tree)
	if err != nil {
		_ = commit.Close()
		return nil, fmt.Errorf("read tree of commit %s: %w", commit.Commit, err)
	}
	return &Clone{Ref: commit.Ref, Commit: commit.Commit, root: root, commit: commit}, nil
}

// isLocal says whether a repository is meant to be read from this machine, be it by an address
// that nobody accepts.
func isLocal(repository string) bool {
	_, local := giturl.Local(repository)
	return local || strings.HasPrefix(repository, "file:") || !strings.Contains(repository, ":")
}

// Close lets go of the objects and of their directory.
func (c *Clone) Close() error { return c.commit.Close() }
