package clone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/mesh-control/mesh/builder/archive"
)

// maxRead is the most a single file read whole, as module.json, may have.
const maxRead = 16 << 20

// TreeHash is the hash of the tree at a path; "" is the root.
func (c *Clone) TreeHash(dir string) (string, error) {
	t, err := c.tree(dir)
	if err != nil {
		return "", err
	}
	return t.Hash.String(), nil
}

// ErrNotFound is returned by [Clone.Read] for a file that is not there.
var ErrNotFound = errors.New("no such file")

// Read returns the bytes of one file.
func (c *Clone) Read(name string) ([]byte, error) {
	f, err := c.root.File(path.Clean(name))
	if errors.Is(err, object.ErrFileNotFound) || errors.Is(err, object.ErrDirectoryNotFound) || errors.Is(err, object.ErrEntryNotFound) {
		return nil, fmt.Errorf("read %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if f.Mode == filemode.Symlink {
		return nil, fmt.Errorf("read %s: is a link: %w", name, ErrNotFound)
	}
	if f.Size > maxRead {
		return nil, fail(ReasonTooLarge, "", "read %s: %d bytes are more than %d", name, f.Size, maxRead)
	}
	r, err := f.Reader()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer r.Close()
	return io.ReadAll(r)
}

// Exists says whether a file or directory stands at the path.
func (c *Clone) Exists(name string) bool {
	_, err := c.root.FindEntry(path.Clean(name))
	return err == nil
}

func (c *Clone) tree(dir string) (*object.Tree, error) {
	dir = path.Clean(dir)
	if dir == "." {
		return c.root, nil
	}
	t, err := c.root.Tree(dir)
	if err != nil {
		return nil, fail(ReasonPath, "", "no directory %s at commit %s", dir, c.Commit)
	}
	return t, nil
}

// Entries lists everything beneath a directory, named relative to it. A submodule or an
// unresolved LFS pointer is an error: neither may ship as what it is not.
func (c *Clone) Entries(dir string) ([]archive.Entry, error) {
	t, err := c.tree(dir)
	if err != nil {
		return nil, err
	}
	var entries []archive.Entry
	walker := object.NewTreeWalker(t, true, nil)
	defer walker.Close()
	for {
		name, entry, err := walker.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, fmt.Errorf("walk %s: %w", dir, err)
		}
		full := path.Join(dir, name)
		switch entry.Mode {
		case filemode.Dir:
			continue
		case filemode.Submodule:
			return nil, fail(ReasonSubmodule, "commit the files themselves, or point the artifact at a path without it", "%s is a submodule", full)
		}
		blob, err := object.GetBlob(c.commit.Objects, entry.Hash)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", full, err)
		}
		e := archive.Entry{Name: name, Size: blob.Size, Open: blob.Reader}
		switch entry.Mode {
		case filemode.Executable:
			e.Kind = archive.Executable
		case filemode.Symlink:
			e.Kind = archive.Link
			if e.Target, err = readAll(blob); err != nil {
				return nil, fmt.Errorf("read %s: %w", full, err)
			}
		}
		if e.Kind != archive.Link {
			if err := refusePointer(full, blob); err != nil {
				return nil, err
			}
		}
		entries = append(entries, e)
	}
}

func readAll(blob *object.Blob) (string, error) {
	r, err := blob.Reader()
	if err != nil {
		return "", err
	}
	defer r.Close()
	if blob.Size > 4096 {
		return "", errors.New("link target is longer than a path can be")
	}
	var b strings.Builder
	_, err = io.Copy(&b, r)
	return b.String(), err
}

var pointer = []byte("version https://git-lfs.github.com/spec/v1\n")

// maxPointer is the size an LFS pointer stays below, by its specification.
const maxPointer = 1024

func refusePointer(name string, blob *object.Blob) error {
	if blob.Size < int64(len(pointer)) || blob.Size > maxPointer {
		return nil
	}
	r, err := blob.Reader()
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	defer r.Close()
	start := make([]byte, len(pointer))
	if _, err := io.ReadFull(r, start); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if bytes.Equal(start, pointer) {
		return fail(ReasonLFS, "commit the file itself", "%s is a pointer into LFS storage, not the file", name)
	}
	return nil
}
