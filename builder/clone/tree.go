package clone

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/mesh-control/mesh/builder/archive"
)

// maxRead is the most a single file read whole, as module.json, may have.
const maxRead = 16 << 20

// ErrNotFound is returned for a file that is not there.
var ErrNotFound = errors.New("no such file")

// place is what stands at a path: an entry, and the repository its hash is of. A submodule
// is the directory of its root.
type place struct {
	*repository
	mode filemode.FileMode
	hash plumbing.Hash
}

// find walks down to a path, into submodules too.
func (c *Clone) find(name string) (place, error) {
	here := place{repository: c.top, mode: filemode.Dir, hash: c.top.root.Hash}
	at := ""
	for _, part := range strings.Split(path.Clean(name), "/") {
		if part == "." {
			continue
		}
		if here.mode != filemode.Dir {
			return here, fmt.Errorf("%s: %w", name, ErrNotFound)
		}
		tree, err := here.tree(here.hash, at)
		if err != nil {
			return here, err
		}
		entry, err := tree.FindEntry(part)
		if err != nil {
			return here, fmt.Errorf("%s: %w", name, ErrNotFound)
		}
		at = path.Join(at, part)
		if here, err = c.enter(here.repository, at, *entry); err != nil {
			return here, err
		}
	}
	return here, nil
}

// enter is the place of an entry; a submodule's is in another repository.
func (c *Clone) enter(r *repository, at string, entry object.TreeEntry) (place, error) {
	if entry.Mode != filemode.Submodule {
		return place{repository: r, mode: entry.Mode, hash: entry.Hash}, nil
	}
	inside, err := c.submodule(r, at, entry)
	if err != nil {
		return place{}, err
	}
	return place{repository: inside, mode: filemode.Dir, hash: inside.root.Hash}, nil
}

// directory is the place of a directory.
func (c *Clone) directory(dir string) (place, error) {
	found, err := c.find(dir)
	if errors.Is(err, ErrNotFound) || err == nil && found.mode != filemode.Dir {
		return found, fail(ReasonPath, "", "no directory %s at commit %s", dir, c.Commit)
	}
	return found, err
}

// TreeHash is the hash of the tree at a path; "" is the root.
func (c *Clone) TreeHash(dir string) (string, error) {
	found, err := c.directory(dir)
	return found.hash.String(), err
}

// Exists says whether a file or directory stands at the path. One whose submodule cannot be
// had is there too: whoever reads it is told why.
func (c *Clone) Exists(name string) bool {
	_, err := c.find(name)
	return !errors.Is(err, ErrNotFound)
}

// Read returns the bytes of one file.
func (c *Clone) Read(name string) ([]byte, error) {
	found, err := c.find(name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %w", err)
	case found.mode == filemode.Symlink:
		return nil, fmt.Errorf("read %s: is a link: %w", name, ErrNotFound)
	case found.mode == filemode.Dir:
		return nil, fmt.Errorf("read %s: is a directory: %w", name, ErrNotFound)
	}
	return readFile(found.repository, found.hash, name)
}

func readFile(r *repository, hash plumbing.Hash, name string) ([]byte, error) {
	blob, err := object.GetBlob(r.commit.Objects, hash)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if blob.Size > maxRead {
		return nil, fail(ReasonTooLarge, "", "read %s: %d bytes are more than %d", name, blob.Size, maxRead)
	}
	reader, err := blob.Reader()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer reader.Close()
	return io.ReadAll(reader)
}

// Entries lists everything beneath a directory, named relative to it, submodules included. An
// unresolved LFS pointer is an error: it may not ship as what it is not.
func (c *Clone) Entries(dir string) ([]archive.Entry, error) {
	found, err := c.directory(dir)
	if err != nil {
		return nil, err
	}
	l := &listing{clone: c, base: path.Clean(dir)}
	err = l.list(found, "")
	return l.entries, err
}

// listing is one call of [Clone.Entries].
type listing struct {
	clone   *Clone
	base    string
	budget  archive.Budget
	entries []archive.Entry
}

func (l *listing) list(dir place, name string) error {
	if err := l.clone.ctx.Err(); err != nil {
		return err
	}
	tree, err := dir.tree(dir.hash, path.Join(l.base, name))
	if err != nil {
		return err
	}
	for _, entry := range tree.Entries {
		// Not path.Join: it would make something else of a name such as "..".
		inner := entry.Name
		if name != "" {
			inner = name + "/" + entry.Name
		}
		if why := l.budget.Take(inner, ""); why != "" {
			return fail(ReasonTooLarge, "", "%.200q of %s %s", inner, l.base, why)
		}
		if err := l.add(dir.repository, inner, entry); err != nil {
			return err
		}
	}
	return nil
}

func (l *listing) add(r *repository, name string, entry object.TreeEntry) error {
	full := path.Join(l.base, name)
	found, err := l.clone.enter(r, full, entry)
	if err != nil {
		return err
	}
	if found.mode == filemode.Dir {
		return l.list(found, name)
	}
	blob, err := object.GetBlob(found.commit.Objects, found.hash)
	if err != nil {
		return fmt.Errorf("read %s: %w", full, err)
	}
	e := archive.Entry{Name: name, Size: blob.Size, Open: blob.Reader}
	switch found.mode {
	case filemode.Executable:
		e.Kind = archive.Executable
	case filemode.Symlink:
		e.Kind = archive.Link
		if e.Target, err = target(blob); err != nil {
			return fmt.Errorf("read %s: %w", full, err)
		}
	}
	if e.Kind != archive.Link {
		if err := refusePointer(full, blob); err != nil {
			return err
		}
	}
	l.entries = append(l.entries, e)
	return nil
}

// target is where a link leads.
func target(blob *object.Blob) (string, error) {
	if blob.Size > archive.MaxPath {
		return "", errors.New("link target is longer than a path can be")
	}
	reader, err := blob.Reader()
	if err != nil {
		return "", err
	}
	defer reader.Close()
	data, err := io.ReadAll(reader)
	return string(data), err
}
