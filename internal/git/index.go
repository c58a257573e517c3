package git

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// maxDelta is the largest object that a delta may make or stand on, since both are held in
// memory. Git's own default is not to make deltas of files above 512 MiB.
const maxDelta = 128 << 20

// inflation bounds what a pack may unpack to, as a multiple of the largest pack accepted.
const inflation = 16

// indexer makes the index of a pack on disk, reading it twice: every object that is whole is
// hashed as it streams by; then deltas are applied, from each whole object outwards. go-git's
// parser would hold each object in memory, of whatever size.
type indexer struct {
	ctx     context.Context //nolint:containedctx // lives for one pack
	address string
	left    int64 // of what may be unpacked
	scanner *packfile.Scanner
	index   idxfile.Writer
	at      map[int64]*packed // by offset
	whole   []*packed
	waiting map[plumbing.Hash][]*packed // deltas by the object they stand on
}

// packed is one object of the pack.
type packed struct {
	offset  int64
	crc     uint32
	hash    plumbing.Hash       // zero until it is known
	kind    plumbing.ObjectType // of the object, once it is known
	derived []*packed           // deltas that stand on it
}

// index makes the object directory of a repository of a pack in dir.
func index(ctx context.Context, address string, most int64, pack *os.File, dir string) error {
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return err
	}
	x := &indexer{
		ctx: ctx, address: address, left: most, scanner: packfile.NewScanner(pack),
		at: map[int64]*packed{}, waiting: map[plumbing.Hash][]*packed{},
	}
	sum, err := x.run()
	if err != nil {
		return err
	}
	found, err := x.index.Index()
	if err != nil {
		return err
	}
	packs := filepath.Join(dir, "objects", "pack")
	if err := os.MkdirAll(packs, 0o700); err != nil {
		return err
	}
	name := filepath.Join(packs, "pack-"+sum.String())
	if err := os.Rename(pack.Name(), name+".pack"); err != nil {
		return err
	}
	out, err := os.Create(name + ".idx")
	if err != nil {
		return err
	}
	_, err = idxfile.NewEncoder(out).Encode(found)
	return errors.Join(err, out.Close())
}

func (x *indexer) run() (plumbing.Hash, error) {
	_, count, err := x.scanner.Header()
	if err != nil {
		return plumbing.ZeroHash, err
	}
	for range count {
		if err := x.scan(); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	sum, err := x.scanner.Checksum()
	if err != nil && !errors.Is(err, io.EOF) {
		return plumbing.ZeroHash, err
	}
	for _, whole := range x.whole {
		if err := x.derive(whole); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	if len(x.waiting) > 0 {
		return plumbing.ZeroHash, fmt.Errorf("%d deltas stand on objects the pack does not have: %w", len(x.waiting), plumbing.ErrObjectNotFound)
	}
	return sum, x.index.OnFooter(sum)
}

// scan reads one object of the first pass.
func (x *indexer) scan() error {
	if err := x.ctx.Err(); err != nil {
		return err
	}
	header, err := x.scanner.NextObjectHeader()
	if err != nil {
		return err
	}
	object := &packed{offset: header.Offset, kind: header.Type}
	x.at[header.Offset] = object
	switch header.Type {
	case plumbing.OFSDeltaObject:
		base, ok := x.at[header.OffsetReference]
		if !ok {
			return plumbing.ErrObjectNotFound
		}
		base.derived = append(base.derived, object)
	case plumbing.REFDeltaObject:
		x.waiting[header.Reference] = append(x.waiting[header.Reference], object)
	default:
		if err := x.take(header.Length); err != nil {
			return err
		}
		hasher := plumbing.NewHasher(header.Type, header.Length)
		if _, object.crc, err = x.scanner.NextObject(hasher); err == nil {
			x.name(object, hasher.Sum())
			x.whole = append(x.whole, object)
		}
		return err
	}
	_, object.crc, err = x.scanner.NextObject(io.Discard)
	return err
}

func (x *indexer) take(size int64) error {
	if x.left -= size; size < 0 || x.left < 0 {
		return Failure(TooLarge, "%s: its files unpack to more than is accepted", x.address)
	}
	return nil
}

// name records an object whose hash is known now.
func (x *indexer) name(object *packed, hash plumbing.Hash) {
	object.hash = hash
	x.index.Add(hash, uint64(object.offset), object.crc)
}

// derivation is a delta to apply to what it stands on.
type derivation struct {
	delta *packed
	kind  plumbing.ObjectType
	base  []byte
}

// derive makes every object that stands on a whole one, however indirectly. Of a chain, only
// the object being made and what it stands on are held.
func (x *indexer) derive(whole *packed) error {
	whole.derived = append(whole.derived, x.claim(whole.hash)...)
	if len(whole.derived) == 0 {
		return nil
	}
	content, err := x.read(whole)
	if err != nil {
		return err
	}
	var left []derivation
	push := func(on *packed, kind plumbing.ObjectType, base []byte) {
		for _, delta := range on.derived {
			left = append(left, derivation{delta, kind, base})
		}
	}
	push(whole, whole.kind, content)
	for len(left) > 0 {
		next := left[len(left)-1]
		left = left[:len(left)-1]
		made, err := x.apply(next)
		if err != nil {
			return err
		}
		x.name(next.delta, plumbing.ComputeHash(next.kind, made))
		next.delta.derived = append(next.delta.derived, x.claim(next.delta.hash)...)
		push(next.delta, next.kind, made)
	}
	return nil
}

// claim gives the deltas that waited for an object.
func (x *indexer) claim(hash plumbing.Hash) []*packed {
	claimed := x.waiting[hash]
	delete(x.waiting, hash)
	return claimed
}

// apply makes the object of a delta.
func (x *indexer) apply(d derivation) ([]byte, error) {
	if err := x.ctx.Err(); err != nil {
		return nil, err
	}
	delta, err := x.read(d.delta)
	if err != nil {
		return nil, err
	}
	// A delta begins with the sizes of both objects.
	_, n := binary.Uvarint(delta)
	size, m := binary.Uvarint(delta[max(n, 0):])
	if n <= 0 || m <= 0 {
		return nil, packfile.ErrInvalidDelta
	}
	if size > maxDelta {
		return nil, Failure(TooLarge, "%s: a file of %d bytes is stored as a change of another; at most %d are accepted so", x.address, size, maxDelta)
	}
	if err := x.take(int64(size)); err != nil {
		return nil, err
	}
	return packfile.PatchDelta(d.base, delta)
}

// read gives the content of an object as the pack has it, which for a delta is the delta.
func (x *indexer) read(object *packed) ([]byte, error) {
	header, err := x.scanner.SeekObjectHeader(object.offset)
	if err != nil {
		return nil, err
	}
	if header.Length > maxDelta {
		return nil, Failure(TooLarge, "%s: a file of %d bytes has changes of it stored; at most %d are accepted so", x.address, header.Length, maxDelta)
	}
	var content bytes.Buffer
	content.Grow(int(header.Length))
	_, _, err = x.scanner.NextObject(&content)
	return content.Bytes(), err
}
