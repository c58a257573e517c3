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
		if got, err = c.fetch(ctx, address, ref, credential); !isMoved(err) || ctx.Err() != nil {
			break
		}
	}
	if isMoved(err) {
		err = Failure(RefNotFound, "%s: %s moves faster than it can be fetched", address, ref)
	}
	return got, Classify(ctx, address, credential, err)
}

// isMoved says whether a server refused a commit that it had advertised a moment before.
func isMoved(err error) bool { return err != nil && strings.Contains(err.Error(), "not our ref") }

func (c *Client) fetch(ctx context.Context, address, ref string, credential *Credential) (*Commit, error) {
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
	tips := branches(advertised)
	request := packp.NewUploadPackRequestFromCapabilities(advertised.Capabilities)
	request.Wants = []plumbing.Hash{wanted.ask}
	if wanted.ask.IsZero() {
		if request.Wants = uniqueHashes(tips); len(request.Wants) == 0 {
			return nil, noBranch(address, wanted.Commit)
		}
	} else if advertised.Capabilities.Supports(capability.Shallow) {
		request.Depth = packp.DepthCommits(1)
		if err := request.Capabilities.Set(capability.Shallow); err != nil {
			return nil, err
		}
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
	return open(address, wanted, tips, objects, remove)
}

// open finds the commit among the objects received, and the branch of one that had no name.
func open(address string, wanted found, tips map[string]plumbing.Hash, objects storer.EncodedObjectStorer, remove func() error) (*Commit, error) {
	commit, err := object.GetCommit(objects, plumbing.NewHash(wanted.Commit))
	switch {
	case err == nil && wanted.Ref == "":
		wanted.Ref, err = holding(address, objects, tips, commit)
	case err != nil && wanted.Ref == "":
		err = noBranch(address, wanted.Commit)
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

// holding names the branch that has a commit in its history, the best of [preferred].
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
	return "", noBranch(address, commit.Hash.String())
}

func noBranch(address, commit string) error {
	return Failure(RefNotFound, "%s: commit %s is in no branch", address, commit)
}

func branches(advertised *packp.AdvRefs) map[string]plumbing.Hash {
	tips := map[string]plumbing.Hash{}
	for name, tip := range advertised.References {
		if strings.HasPrefix(name, "refs/heads/") {
			tips[name] = tip
		}
	}
	return tips
}

func uniqueHashes(tips map[string]plumbing.Hash) []plumbing.Hash {
	var hashes []plumbing.Hash
	for _, tip := range tips {
		if !slices.Contains(hashes, tip) {
			hashes = append(hashes, tip)
		}
	}
	return hashes
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
