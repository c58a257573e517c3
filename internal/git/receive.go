package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// receive takes a pack: into memory while its objects fit there, else into a directory. The
// pack is written to that directory as it comes in either case, since how large its objects
// are shows only when they are unpacked.
func (c *Client) receive(ctx context.Context, address string, pack io.Reader) (storer.EncodedObjectStorer, func() error, error) {
	if err := os.MkdirAll(c.config.Dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make fetch directory: %w", err)
	}
	dir, err := os.MkdirTemp(c.config.Dir, packDirectory)
	if err != nil {
		return nil, nil, fmt.Errorf("make fetch directory: %w", err)
	}
	remove := func() error { return os.RemoveAll(dir) }
	objects, closed, err := c.unpack(ctx, address, pack, dir)
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	if closed == nil {
		return objects, func() error { return nil }, remove()
	}
	return objects, func() error { return errors.Join(closed(), remove()) }, nil
}

// unpack gives the objects of a pack. The function returned closes those that lie in dir; nil
// says that all are in memory.
func (c *Client) unpack(ctx context.Context, address string, pack io.Reader, dir string) (storer.EncodedObjectStorer, func() error, error) {
	spool, err := os.Create(filepath.Join(dir, "pack"))
	if err != nil {
		return nil, nil, fmt.Errorf("keep a pack: %w", err)
	}
	defer spool.Close()
	received := &capped{reader: pack, left: c.config.MaxBytes, ctx: ctx, address: address, received: c.config.Received}
	pack = io.TeeReader(received, spool)
	inMemory := newObjects(c.config.MemoryBytes)
	err = packfile.UpdateObjectStorage(inMemory, pack)
	switch {
	case err == nil:
		return inMemory, nil, nil
	case !inMemory.full:
		return nil, nil, err
	}
	if _, err := io.Copy(spool, received); err != nil {
		return nil, nil, err
	}
	if err := index(ctx, address, inflation*c.config.MaxBytes, spool, dir); err != nil {
		return nil, nil, err
	}
	onDisk := openDirectory(dir)
	return onDisk, onDisk.Close, nil
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
