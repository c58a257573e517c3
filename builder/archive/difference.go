package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Difference says where two tars written in one order first differ, in words: which file, and
// what about it. It is "" where they hold the same.
func Difference(first, second io.Reader) (string, error) {
	a, b := tar.NewReader(first), tar.NewReader(second)
	for {
		ha, errA := next(a)
		hb, errB := next(b)
		if err := errors.Join(errA, errB); err != nil {
			return "", err
		}
		switch {
		case ha == nil && hb == nil:
			return "", nil
		case hb == nil || ha != nil && ha.Name < hb.Name:
			return fmt.Sprintf("%s is only in the first", ha.Name), nil
		case ha == nil || ha.Name > hb.Name:
			return fmt.Sprintf("%s is only in the second", hb.Name), nil
		}
		if what := headerDifference(ha, hb); what != "" {
			return ha.Name + ": " + what, nil
		}
		what, err := contentDifference(a, b)
		if what != "" || err != nil {
			return ha.Name + ": " + what, err
		}
	}
}

// next is the next entry, nil at the end.
func next(r *tar.Reader) (*tar.Header, error) {
	h, err := r.Next()
	return h, notEnd(err)
}

func notEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func headerDifference(a, b *tar.Header) string {
	switch {
	case a.Typeflag != b.Typeflag:
		return fmt.Sprintf("is of type %q and %q", a.Typeflag, b.Typeflag)
	case a.Linkname != b.Linkname:
		return fmt.Sprintf("links to %q and %q", a.Linkname, b.Linkname)
	case a.Mode != b.Mode:
		return fmt.Sprintf("has mode %04o and %04o", a.Mode, b.Mode)
	case a.Uid != b.Uid || a.Gid != b.Gid:
		return fmt.Sprintf("belongs to %d:%d and %d:%d", a.Uid, a.Gid, b.Uid, b.Gid)
	case a.Devmajor != b.Devmajor || a.Devminor != b.Devminor:
		return "is another device"
	}
	for key, value := range a.PAXRecords {
		if other, ok := b.PAXRecords[key]; key != "size" && (!ok || other != value) {
			return "has another " + key
		}
	}
	return ""
}

// excerpt is how many bytes of a difference are shown.
const excerpt = 24

// contentDifference compares what is left of two files, and shows where they part.
func contentDifference(a, b io.Reader) (string, error) {
	var x, y [64 << 10]byte
	for at := int64(0); ; {
		n, errA := io.ReadFull(a, x[:])
		m, errB := io.ReadFull(b, y[:])
		if err := errors.Join(notShort(errA), notShort(errB)); err != nil {
			return "", err
		}
		if !bytes.Equal(x[:n], y[:m]) {
			i := 0
			for i < min(n, m) && x[i] == y[i] {
				i++
			}
			return fmt.Sprintf("differs at byte %d, %q and %q", at+int64(i), x[i:min(n, i+excerpt)], y[i:min(m, i+excerpt)]), nil
		}
		if n < len(x) {
			return "", nil
		}
		at += int64(n)
	}
}

func notShort(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return notEnd(err)
}
