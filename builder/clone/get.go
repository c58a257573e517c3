package clone

import (
	"context"
	"fmt"
	"strings"
	"time"

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
	Limit      int64 // bytes fetched at most, submodules included; 0 is [DefaultLimit]
}

// DefaultLimit is how many bytes are fetched at most when [Request] says nothing.
const DefaultLimit = 4 << 30

// Clone is one commit, with its objects and those of the submodules that were looked into.
type Clone struct {
	Ref    string // full name
	Commit string
	// CommittedAt is the commit's own time.
	CommittedAt time.Time

	ctx     context.Context //nolint:containedctx // a clone lives for one build, whose context this is
	request Request
	fetched int64 // bytes, of all
	top     *repository
	inside  map[string]*repository // submodules, by the path at which they stand
}

// Get brings the commit the ref stands for now. Submodules are fetched when something in them
// is asked for, until ctx ends.
func Get(ctx context.Context, req Request) (*Clone, error) {
	if req.Limit == 0 {
		req.Limit = DefaultLimit
	}
	from := req.Repository
	if req.From != "" {
		from = req.From
	}
	if !req.AllowLocal && isLocal(from) {
		return nil, fail(ReasonLocal, "give the repository's URL (https:// or ssh://), or start mesh-builder by hand to build a directory",
			"repository %s is a path on this machine, and this builder does not see its node's files", from)
	}
	c := &Clone{ctx: ctx, request: req, inside: map[string]*repository{}}
	commit, err := c.fetch(func(client *git.Client) (*git.Commit, error) {
		return client.Fetch(ctx, from, req.Ref, req.Credential)
	})
	if err != nil {
		return nil, err
	}
	c.Ref, c.Commit, c.CommittedAt = commit.Ref, commit.Commit, commit.CommittedAt
	if c.top, err = newRepository(from, "", commit); err != nil {
		return nil, err
	}
	return c, nil
}

// fetch fetches one commit within what is left of the limit.
func (c *Clone) fetch(get func(*git.Client) (*git.Commit, error)) (*git.Commit, error) {
	client, err := git.New(git.Config{
		Dir: c.request.Directory, Keep: true, MaxBytes: max(c.request.Limit-c.fetched, 1),
		Received: func(n int) { c.fetched += int64(n) },
	})
	if err != nil {
		return nil, fmt.Errorf("prepare git: %w", err)
	}
	defer client.Close()
	commit, err := get(client)
	return commit, explain(err)
}

// isLocal says whether a repository is meant to be read from this machine, be it by an address
// that nobody accepts.
func isLocal(repository string) bool {
	_, local := giturl.Local(repository)
	return local || strings.HasPrefix(repository, "file:") || !strings.Contains(repository, ":")
}

// Close lets go of the objects and of their directories.
func (c *Clone) Close() error {
	err := c.top.commit.Close()
	for _, inside := range c.inside {
		if closed := inside.commit.Close(); err == nil {
			err = closed
		}
	}
	return err
}
