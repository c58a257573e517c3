package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/memory"
)

// receive takes a pack into memory, or into a directory once it is larger than that allows.
func (c *Client) receive(ctx context.Context, address string, pack io.Reader) (storer.EncodedObjectStorer, func() error, error) {
	pack = &capped{reader: pack, left: c.config.MaxBytes, ctx: ctx, address: address, received: c.config.Received}
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

// SetEncodedObject implements [storer.EncodedObjectStorer].
func (b *bounded) SetEncodedObject(o plumbing.EncodedObject) (plumbing.Hash, error) {
	b.left -= o.Size()
	if b.left < 0 {
		return plumbing.ZeroHash, Failure(TooLarge, "%s: its files unpack to more than is accepted", b.address)
	}
	return b.Storage.SetEncodedObject(o)
}

// capped stops a pack at a number of bytes, and when ctx ends.
type capped struct {
	reader   io.Reader
	left     int64
	ctx      context.Context //nolint:containedctx // lives for one read
	address  string
	received func(bytes int)
}

func (c *capped) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.reader.Read(p)
	c.received(n)
	c.left -= int64(n)
	if c.left < 0 {
		return n, Failure(TooLarge, "%s: fetching it takes more than is accepted", c.address)
	}
	return n, err
}
