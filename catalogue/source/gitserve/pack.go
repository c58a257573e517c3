package gitserve

import (
	"compress/zlib"
	"context"
	"crypto/sha1" //nolint:gosec // the pack format's own checksum
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// selection is what one answer holds: the objects, in sending order, and where the history
// the client then has is cut.
type selection struct {
	objects []plumbing.Hash
	shallow packp.ShallowUpdate
}

// history is the commits reached from some tips and the tags on the way.
type history struct {
	commits  []*object.Commit
	tags     []plumbing.Hash
	others   []plumbing.Hash // trees and blobs that a ref names directly
	boundary map[plumbing.Hash]bool
	seen     map[plumbing.Hash]bool
}

// reach follows parents from tips for depth generations, 0 for all. At cuts it stops: those
// are commits whose parents the client does not have.
func reach(repository *filesystem.Storage, tips []plumbing.Hash, depth int, cuts map[plumbing.Hash]bool) (*history, error) {
	h := &history{boundary: map[plumbing.Hash]bool{}, seen: map[plumbing.Hash]bool{}}
	level := tips
	for generation := 1; len(level) > 0; generation++ {
		var next []plumbing.Hash
		for _, hash := range level {
			parents, err := h.add(repository, hash)
			if err != nil {
				return nil, err
			}
			switch {
			case depth > 0 && generation >= depth && len(parents) > 0:
				h.boundary[h.commits[len(h.commits)-1].Hash] = true
			case !cuts[hash]:
				next = append(next, parents...)
			}
		}
		level = next
	}
	return h, nil
}

// add takes note of one object and gives the parents of the commit it is or names.
func (h *history) add(repository *filesystem.Storage, hash plumbing.Hash) ([]plumbing.Hash, error) {
	if h.seen[hash] {
		return nil, nil
	}
	h.seen[hash] = true
	if commit, err := object.GetCommit(repository, hash); err == nil {
		h.commits = append(h.commits, commit)
		return commit.ParentHashes, nil
	}
	if tag, err := object.GetTag(repository, hash); err == nil {
		h.tags = append(h.tags, hash)
		return h.add(repository, tag.Target)
	}
	if err := repository.HasEncodedObject(hash); err != nil {
		return nil, fmt.Errorf("object %s: %w", hash, err)
	}
	h.others = append(h.others, hash)
	return nil, nil
}

// choose decides what the client lacks.
func choose(repository *filesystem.Storage, n *negotiation) (*selection, error) {
	cuts := map[plumbing.Hash]bool{}
	for _, hash := range n.Shallows {
		cuts[hash] = true
	}
	depth, _ := n.Depth.(packp.DepthCommits)
	wantedCuts := cuts
	if depth > 0 {
		wantedCuts = nil // the depth alone says where the history ends
	}
	wanted, err := reach(repository, n.Wants, int(depth), wantedCuts)
	if err != nil {
		return nil, err
	}
	held, err := reach(repository, n.haves, 0, cuts)
	if err != nil {
		return nil, err
	}
	s := &selection{}
	if depth > 0 {
		s.shallow = shallowUpdate(wanted, cuts)
	}
	w := &treeWalk{repository: repository, seen: map[plumbing.Hash]bool{}}
	for _, commit := range held.commits {
		if slices.Contains(n.haves, commit.Hash) {
			if err := w.tree(commit.TreeHash); err != nil {
				return nil, err
			}
		}
	}
	w.found = nil
	for _, commit := range wanted.commits {
		if held.seen[commit.Hash] {
			continue
		}
		s.objects = append(s.objects, commit.Hash)
		if err := w.tree(commit.TreeHash); err != nil {
			return nil, err
		}
	}
	s.objects = append(s.objects, wanted.tags...)
	s.objects = append(s.objects, wanted.others...)
	s.objects = append(s.objects, w.found...)
	return s, nil
}

func shallowUpdate(wanted *history, cuts map[plumbing.Hash]bool) packp.ShallowUpdate {
	var update packp.ShallowUpdate
	for hash := range wanted.boundary {
		if !cuts[hash] {
			update.Shallows = append(update.Shallows, hash)
		}
	}
	for hash := range maps.Keys(cuts) {
		if wanted.seen[hash] && !wanted.boundary[hash] {
			update.Unshallows = append(update.Unshallows, hash)
		}
	}
	return update
}

// treeWalk lists trees and blobs, each once. Commits of submodules are not this repository's.
type treeWalk struct {
	repository *filesystem.Storage
	seen       map[plumbing.Hash]bool
	found      []plumbing.Hash
}

func (w *treeWalk) tree(hash plumbing.Hash) error {
	if w.seen[hash] {
		return nil
	}
	w.seen[hash] = true
	w.found = append(w.found, hash)
	tree, err := object.GetTree(w.repository, hash)
	if err != nil {
		return fmt.Errorf("tree %s: %w", hash, err)
	}
	for _, entry := range tree.Entries {
		switch {
		case entry.Mode == filemode.Submodule:
		case entry.Mode == filemode.Dir:
			if err := w.tree(entry.Hash); err != nil {
				return err
			}
		case !w.seen[entry.Hash]:
			w.seen[entry.Hash] = true
			w.found = append(w.found, entry.Hash)
		}
	}
	return nil
}

// writePack writes objects as a pack, version 2, each whole and compressed by itself.
func writePack(ctx context.Context, w io.Writer, repository *filesystem.Storage, objects []plumbing.Hash) error {
	sum := sha1.New() //nolint:gosec // see the import
	out := io.MultiWriter(w, sum)
	header := binary.BigEndian.AppendUint32([]byte("PACK"), 2)
	header = binary.BigEndian.AppendUint32(header, uint32(len(objects)))
	if _, err := out.Write(header); err != nil {
		return err
	}
	deflate, err := zlib.NewWriterLevel(out, zlib.BestSpeed)
	if err != nil {
		return err
	}
	for _, hash := range objects {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := writeObject(out, deflate, repository, hash); err != nil {
			return fmt.Errorf("object %s: %w", hash, err)
		}
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

func writeObject(out io.Writer, deflate *zlib.Writer, repository *filesystem.Storage, hash plumbing.Hash) error {
	o, err := repository.EncodedObject(plumbing.AnyObject, hash)
	if err != nil {
		return err
	}
	if _, err := out.Write(objectHeader(o.Type(), o.Size())); err != nil {
		return err
	}
	reader, err := o.Reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	deflate.Reset(out)
	n, err := io.Copy(deflate, reader)
	if err != nil {
		return err
	}
	if n != o.Size() {
		return fmt.Errorf("%d bytes instead of %d", n, o.Size())
	}
	return deflate.Close()
}

// objectHeader is the type in three bits and the size in groups of seven, four first.
func objectHeader(kind plumbing.ObjectType, size int64) []byte {
	first := byte(kind)<<4 | byte(size&0x0f)
	size >>= 4
	var header []byte
	for size > 0 {
		header = append(header, first|0x80)
		first = byte(size & 0x7f)
		size >>= 7
	}
	return append(header, first)
}
