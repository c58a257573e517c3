package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/memory"
)

// Fetch reads the commit at which ref stands now. It may be newer than an earlier
// [Client.LsRemote] said; [Snapshot.Head] is what was got. Close the snapshot.
func (c *Client) Fetch(ctx context.Context, address, ref string, auth *Auth) (*Snapshot, error) {
	snapshot, err := within(ctx, address,
		func() (*Snapshot, error) { return c.fetch(ctx, address, ref, auth) },
		func(late *Snapshot) { _ = late.Close() })
	err = classify(ctx, address, auth, err)
	c.metrics.fetch.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return nil, err
	}
	return snapshot, nil
}

func (c *Client) fetch(ctx context.Context, address, ref string, auth *Auth) (*Snapshot, error) {
	if dir, ok := LocalPath(address); ok {
		return fetchLocal(dir, address, ref)
	}
	session, err := c.open(address, auth)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, err
	}
	head, err := resolve(advertised, address, ref)
	if err != nil {
		return nil, err
	}
	request := packp.NewUploadPackRequestFromCapabilities(advertised.Capabilities)
	request.Wants = []plumbing.Hash{plumbing.NewHash(head.Commit)}
	if advertised.Capabilities.Supports(capability.Shallow) {
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
	return newSnapshot(address, head, objects, remove)
}

func fetchLocal(dir, address, ref string) (*Snapshot, error) {
	repository, err := openLocal(dir)
	if err != nil {
		return nil, err
	}
	head, err := localHead(repository, address, ref)
	if err != nil {
		repository.Close()
		return nil, err
	}
	return newSnapshot(address, head, repository, repository.Close)
}

func newSnapshot(address string, head Head, objects storer.EncodedObjectStorer, closed func() error) (*Snapshot, error) {
	commit, err := object.GetCommit(objects, plumbing.NewHash(head.Commit))
	if err != nil {
		err = failure(Unreadable, "%s: commit %s: %v", Redact(address), head.Commit, err)
		return nil, errors.Join(err, closed())
	}
	return &Snapshot{Head: head, CommittedAt: commit.Committer.When, root: commit.TreeHash, objects: objects, close: closed}, nil
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

// receive takes a pack into memory, or into a directory once it is larger than that allows.
func (c *Client) receive(ctx context.Context, address string, pack io.Reader) (storer.EncodedObjectStorer, func() error, error) {
	pack = &capped{reader: pack, left: c.config.MaxBytes, ctx: ctx, address: address, count: c.metrics.bytes.Add}
	var begin bytes.Buffer
	_, err := io.CopyN(&begin, pack, c.config.MemoryBytes+1)
	if err == nil {
		return c.receiveOnDisk(io.MultiReader(&begin, pack))
	}
	if !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	objects := &bounded{Storage: memory.NewStorage(), left: inflation * c.config.MemoryBytes, address: address}
	if err := packfile.UpdateObjectStorage(objects, bytes.NewReader(begin.Bytes())); err != nil {
		return nil, nil, err
	}
	return objects.Storage, func() error { return nil }, nil
}

func (c *Client) receiveOnDisk(pack io.Reader) (storer.EncodedObjectStorer, func() error, error) {
	if err := os.MkdirAll(c.config.Dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make fetch directory: %w", err)
	}
	dir, err := os.MkdirTemp(c.config.Dir, packDirectory)
	if err != nil {
		return nil, nil, fmt.Errorf("make fetch directory: %w", err)
	}
	remove := func() error { return os.RemoveAll(dir) }
	objects := openDirectory(dir)
	if err := objects.Init(); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	if err := packfile.UpdateObjectStorage(objects, pack); err != nil {
		return nil, nil, errors.Join(err, objects.Close(), remove())
	}
	return objects, func() error { return errors.Join(objects.Close(), remove()) }, nil
}

// inflation bounds what a pack in memory may unpack to, as a multiple of its own cap: a few
// bytes of a hostile pack can stand for gigabytes.
const inflation = 16

// bounded is memory storage that stops at a number of unpacked bytes.
type bounded struct {
	*memory.Storage
	left    int64
	address string
}

func (b *bounded) SetEncodedObject(o plumbing.EncodedObject) (plumbing.Hash, error) {
	b.left -= o.Size()
	if b.left < 0 {
		return plumbing.ZeroHash, failure(TooLarge, "%s: its files unpack to more than is accepted", Redact(b.address))
	}
	return b.Storage.SetEncodedObject(o)
}

// capped stops a pack at a number of bytes, and when ctx ends.
type capped struct {
	reader  io.Reader
	left    int64
	ctx     context.Context //nolint:containedctx // lives for one read
	address string
	count   func(float64)
}

func (c *capped) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.reader.Read(p)
	c.count(float64(n))
	c.left -= int64(n)
	if c.left < 0 {
		return n, failure(TooLarge, "%s: fetching it takes more than is accepted", Redact(c.address))
	}
	return n, err
}
