package git

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// Commit is one commit with its files, readable until it is closed.
type Commit struct {
	Head
	CommittedAt time.Time
	Tree        plumbing.Hash // of its root
	Objects     storer.EncodedObjectStorer
	close       func() error
}

// Close frees what the commit holds, in memory and on disk.
func (c *Commit) Close() error { return c.close() }

// attempts is how often a ref is resolved anew because it moved before it was fetched.
const attempts = 3

// Fetch reads the commit at which ref stands now. It may be newer than an earlier
// [Client.LsRemote] said; [Commit.Head] is what was got. Close the commit.
func (c *Client) Fetch(ctx context.Context, address, ref string, credential *Credential) (*Commit, error) {
	var got *Commit
	var err error
	for range attempts {
		if got, err = c.fetch(ctx, address, ref, credential, false); !isRefused(err) || ctx.Err() != nil {
			break
		}
	}
	if isRefused(err) {
		err = Failure(RefNotFound, "%s: %s moves faster than it can be fetched", address, ref)
	}
	return got, Classify(ctx, address, credential, err)
}

// FetchCommit reads a commit by its 40 digits and does not ask what it is called:
// [Head.Ref] is "" when it is the tip of nothing. Close the commit.
func (c *Client) FetchCommit(ctx context.Context, address, commit string, credential *Credential) (*Commit, error) {
	got, err := c.fetch(ctx, address, commit, credential, true)
	if isRefused(err) {
		got, err = c.fetch(ctx, address, commit, credential, false)
	}
	return got, Classify(ctx, address, credential, err)
}

// isRefused says whether a server does not give a commit by its digits: it is no ref's tip,
// or no longer that of one it had advertised a moment before.
func isRefused(err error) bool { return err != nil && strings.Contains(err.Error(), "not our ref") }

// fetch reads one commit. One that has no name is found in the full history of every branch
// and tag, or, when its name does not matter, asked for by its digits.
func (c *Client) fetch(ctx context.Context, address, ref string, credential *Credential, nameless bool) (*Commit, error) {
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	if dir, ok := u.Local(); ok {
		return fetchLocal(dir, address, ref)
	}
	session, err := c.open(ctx, u, credential)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, err
	}
	wanted, err := resolve(advertised, address, ref)
	if err != nil {
		return nil, err
	}
	if nameless && wanted.ask.IsZero() {
		wanted.ask = plumbing.NewHash(wanted.Commit)
	}
	request, err := ask(advertised, wanted)
	if err != nil {
		return nil, err
	}
	response, err := session.UploadPack(ctx, request)
	if err != nil {
		return nil, err
	}
	defer response.Close()
	objects, remove, err := c.receive(ctx, address, demultiplex(request.Capabilities, response))
	if err != nil {
		return nil, err
	}
	if nameless {
		return open(address, wanted, nil, objects, remove)
	}
	return open(address, wanted, tips(advertised), objects, remove)
}

// ask is the request for what is wanted: that commit alone, or everything there is.
func ask(advertised *packp.AdvRefs, wanted found) (*packp.UploadPackRequest, error) {
	request := packp.NewUploadPackRequestFromCapabilities(advertised.Capabilities)
	if wanted.ask.IsZero() {
		for name, tip := range advertised.References {
			if isTip(name) && !slices.Contains(request.Wants, tip) {
				request.Wants = append(request.Wants, tip)
			}
		}
		return request, nil
	}
	request.Wants = []plumbing.Hash{wanted.ask}
	if !advertised.Capabilities.Supports(capability.Shallow) {
		return request, nil
	}
	request.Depth = packp.DepthCommits(1)
	return request, request.Capabilities.Set(capability.Shallow)
}

// open finds the commit among the objects received, and a name for one that had none.
func open(address string, wanted found, tips map[string]plumbing.Hash, objects storer.EncodedObjectStorer, remove func() error) (*Commit, error) {
	commit, err := object.GetCommit(objects, plumbing.NewHash(wanted.Commit))
	switch {
	case err == nil && wanted.Ref == "" && tips != nil:
		wanted.Ref, err = holding(address, objects, tips, commit)
	case err != nil && wanted.Ref == "":
		err = nowhere(address, wanted.Commit)
	case errors.Is(err, plumbing.ErrObjectNotFound) && objects.HasEncodedObject(plumbing.NewHash(wanted.Commit)) == nil:
		err = Failure(RefNotFound, "%s: %s does not name a commit", address, wanted.Ref)
	case err != nil:
		err = Failure(Unreadable, "%s: commit %s: %v", address, wanted.Commit, err)
	}
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return &Commit{Head: wanted.Head, CommittedAt: commit.Committer.When, Tree: commit.TreeHash, Objects: objects, close: remove}, nil
}

// holding names the branch or tag that has a commit in its history, the best of [preferred].
func holding(address string, objects storer.EncodedObjectStorer, tips map[string]plumbing.Hash, commit *object.Commit) (string, error) {
	names := make([]string, 0, len(tips))
	for name := range tips {
		names = append(names, name)
	}
	slices.SortFunc(names, preferred)
	for _, name := range names {
		tip, err := object.GetCommit(objects, tips[name])
		if err != nil {
			continue
		}
		if in, err := commit.IsAncestor(tip); err == nil && in {
			return name, nil
		}
	}
	return "", nowhere(address, commit.Hash.String())
}

func nowhere(address, commit string) error {
	return Failure(RefNotFound, "%s: commit %s is in no branch and no tag", address, commit)
}

// isTip says whether a name is that of a branch or a tag.
func isTip(name string) bool {
	return strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/")
}

// tips are the commits of all branches and tags.
func tips(advertised *packp.AdvRefs) map[string]plumbing.Hash {
	commits := map[string]plumbing.Hash{}
	for name, tip := range advertised.References {
		if isTip(name) {
			commits[name] = plumbing.NewHash(at(advertised, name, tip).Commit)
		}
	}
	return commits
}

func demultiplex(capabilities *capability.List, response io.Reader) io.Reader {
	switch {
	case capabilities.Supports(capability.Sideband64k):
		return sideband.NewDemuxer(sideband.Sideband64k, response)
	case capabilities.Supports(capability.Sideband):
		return sideband.NewDemuxer(sideband.Sideband, response)
	}
	return response
}
