package source

import (
	"context"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/mesh-control/mesh/internal/git"
)

// FileName is what the file at a module's path is called; no setting names another.
const FileName = "module.json"

// The limits of a walk. A module.json above MaxFileBytes is refused by its reader's own cap.
const (
	MaxFileBytes = 256 << 10
	maxDepth     = 64
	maxEntries   = 4 << 20
)

// Snapshot is one commit, readable until it is closed.
type Snapshot struct{ *git.Commit }

// File is a module.json and where it stands. Path is the module's, "" for the root.
type File struct {
	Path string
	Tree string // hash of the path's tree
	Blob string // hash of the file
	Size int64
	// Problem says why the entry is not a file that can be read; "" when it is one.
	Problem string
	// Known: the asker knows this path with this very tree. Nothing beneath it was looked
	// at, since nothing beneath it can have changed.
	Known bool
}

// Walk finds every module.json of the commit, in the order of its paths. known, if not nil,
// is asked for each directory whether a module stood there with this same tree; what it
// confirms is not descended into.
func (s *Snapshot) Walk(ctx context.Context, known func(path, tree string) bool) ([]File, error) {
	w := &walk{ctx: ctx, objects: s.Objects, known: known}
	if err := w.directory("", s.Tree, 0); err != nil {
		return nil, git.Classify(ctx, s.Head.Commit, nil, err)
	}
	slices.SortFunc(w.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return w.files, nil
}

// Read is the content of a module.json found by [Snapshot.Walk].
func (s *Snapshot) Read(blob string) ([]byte, error) {
	found, err := object.GetBlob(s.Objects, plumbing.NewHash(blob))
	if err != nil {
		return nil, git.Failure(git.Unreadable, "blob %s: %v", blob, err)
	}
	if found.Size > MaxFileBytes {
		return nil, git.Failure(git.TooLarge, "%s is %d bytes; at most %d are read", FileName, found.Size, MaxFileBytes)
	}
	reader, err := found.Reader()
	if err != nil {
		return nil, git.Failure(git.Unreadable, "blob %s: %v", blob, err)
	}
	defer reader.Close()
	data, err := io.ReadAll(io.LimitReader(reader, MaxFileBytes))
	if err != nil {
		return nil, git.Failure(git.Unreadable, "blob %s: %v", blob, err)
	}
	return data, nil
}

type walk struct {
	ctx     context.Context //nolint:containedctx // lives for one walk
	objects storer.EncodedObjectStorer
	known   func(path, tree string) bool
	files   []File
	entries int
}

func (w *walk) directory(at string, hash plumbing.Hash, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return git.Failure(git.TooLarge, "directories lie more than %d deep", maxDepth)
	}
	if w.known != nil && w.known(at, hash.String()) {
		w.files = append(w.files, File{Path: at, Tree: hash.String(), Known: true})
		return nil
	}
	tree, err := object.GetTree(w.objects, hash)
	if err != nil {
		return git.Failure(git.Unreadable, "tree of %q: %v", at, err)
	}
	if w.entries += len(tree.Entries); w.entries > maxEntries {
		return git.Failure(git.TooLarge, "more than %d files", maxEntries)
	}
	for _, entry := range tree.Entries {
		if entry.Name == FileName {
			w.files = append(w.files, w.file(at, hash, entry))
		}
	}
	for _, entry := range tree.Entries {
		if entry.Mode != filemode.Dir || strings.ContainsAny(entry.Name, "/\x00") {
			continue
		}
		if err := w.directory(path.Join(at, entry.Name), entry.Hash, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) file(at string, tree plumbing.Hash, entry object.TreeEntry) File {
	f := File{Path: at, Tree: tree.String(), Blob: entry.Hash.String()}
	switch entry.Mode {
	case filemode.Regular, filemode.Executable, filemode.Deprecated:
	case filemode.Symlink:
		f.Problem = "is a link; it must be a file"
		return f
	default:
		f.Problem = "is not a file"
		return f
	}
	size, err := w.objects.EncodedObjectSize(entry.Hash)
	switch {
	case err != nil:
		f.Problem = "cannot be read: " + git.Failure(git.Unreadable, "%v", err).Message
	case size > MaxFileBytes:
		f.Problem = "is larger than 256 KiB"
	}
	f.Size = size
	return f
}
