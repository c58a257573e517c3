package git

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/storage/memory"
)

var (
	errFull   = errors.New("the objects do not fit into the memory given to them")
	errLonger = errors.New("an object is longer than the pack says")
)

// objects are the objects of a pack in memory, up to a number of bytes. A few bytes of a
// hostile pack can stand for gigabytes, so the size an object claims counts before it is read.
type objects struct {
	*memory.Storage
	left int64
	full bool
}

func newObjects(bytes int64) *objects {
	return &objects{Storage: memory.NewStorage(), left: bytes}
}

// overhead is what an object costs beside its content: its entries in the maps of the storage.
const overhead = 256

func (o *objects) take(size int64) error {
	if o.left -= size + overhead; o.left < 0 || size < 0 {
		o.full = true
		return errFull
	}
	return nil
}

// SetEncodedObject implements storer.EncodedObjectStorer. It gets what deltas stood for.
func (o *objects) SetEncodedObject(resolved plumbing.EncodedObject) (plumbing.Hash, error) {
	if err := o.take(resolved.Size()); err != nil {
		return plumbing.ZeroHash, err
	}
	return o.Storage.SetEncodedObject(resolved)
}

// LazyWriter is how go-git's parser writes an object whose size it knows: into memory of just
// that size.
func (o *objects) LazyWriter() (io.WriteCloser, func(plumbing.ObjectType, int64) error, error) {
	w := &objectWriter{objects: o}
	return w, w.begin, nil
}

// objectWriter takes one object and stores it as soon as it is whole; the parser closes its
// writers late.
type objectWriter struct {
	objects *objects
	object  *whole
}

func (w *objectWriter) begin(kind plumbing.ObjectType, size int64) error {
	if err := w.objects.take(size); err != nil {
		return err
	}
	w.object = &whole{kind: kind, content: make([]byte, 0, size)}
	return w.store()
}

// Write implements io.Writer.
func (w *objectWriter) Write(p []byte) (int, error) {
	if len(p) > cap(w.object.content)-len(w.object.content) {
		return 0, errLonger
	}
	w.object.content = append(w.object.content, p...)
	return len(p), w.store()
}

func (w *objectWriter) store() error {
	if len(w.object.content) < cap(w.object.content) {
		return nil
	}
	w.object.hash = plumbing.ComputeHash(w.object.kind, w.object.content)
	_, err := w.objects.Storage.SetEncodedObject(w.object)
	return err
}

// Close implements io.Closer.
func (w *objectWriter) Close() error { return nil }

// whole is an object that is complete, and never changed.
type whole struct {
	kind    plumbing.ObjectType
	hash    plumbing.Hash
	content []byte
}

func (o *whole) Hash() plumbing.Hash             { return o.hash }
func (o *whole) Type() plumbing.ObjectType       { return o.kind }
func (o *whole) SetType(plumbing.ObjectType)     {}
func (o *whole) Size() int64                     { return int64(len(o.content)) }
func (o *whole) SetSize(int64)                   {}
func (o *whole) Writer() (io.WriteCloser, error) { return nil, errors.ErrUnsupported }
func (o *whole) Reader() (io.ReadCloser, error)  { return io.NopCloser(bytes.NewReader(o.content)), nil }
