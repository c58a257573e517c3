package archive

import (
	"archive/tar"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// Kind says what an [Entry] is.
type Kind uint8

// The kinds of entry. Directories are implied by the names of the others; Directory is for
// one that would otherwise be empty.
const (
	File Kind = iota
	Executable
	Link
	Directory
)

// Entry is one thing to pack. Name is a clean relative slash path. Size and Open describe
// a file's bytes, Target a link's.
type Entry struct {
	Name   string
	Kind   Kind
	Size   int64
	Target string
	Open   func() (io.ReadCloser, error)
}

// Refused says that an archive, or what was to become one, breaks a rule. Name is the
// entry at fault.
type Refused struct {
	Name string
	Why  string
}

func (r *Refused) Error() string { return fmt.Sprintf("%.200q: %s", r.Name, r.Why) }

func refuse(name, format string, args ...any) error {
	return &Refused{Name: name, Why: fmt.Sprintf(format, args...)}
}

// Pack checks the entries against everything [Unpack] would refuse and writes them as one
// deterministic tar. The order of entries does not matter.
func Pack(w io.Writer, entries []Entry) error { return pack(w, entries, true) }

// PackContext is [Pack] for a tar that is read by a container engine and not by [Unpack]:
// names that differ only in case are fine there.
func PackContext(w io.Writer, entries []Entry) error { return pack(w, entries, false) }

func pack(w io.Writer, entries []Entry, caseless bool) error {
	all, err := arrange(entries)
	if err != nil {
		return err
	}
	tree := newTree()
	for _, e := range all {
		if err := tree.add(e.Name, e.Kind, e.Target, caseless); err != nil {
			return err
		}
	}
	if err := tree.checkLinks(); err != nil {
		return err
	}
	return write(w, all)
}

// arrange returns the entries with every implied directory, in the order they are written.
func arrange(entries []Entry) ([]Entry, error) {
	dirs := map[string]bool{}
	all := make([]Entry, 0, len(entries)+len(entries)/4)
	for _, e := range entries {
		if why := badName(e.Name); why != "" {
			return nil, refuse(e.Name, "%s", why)
		}
		if e.Name != path.Clean(e.Name) {
			return nil, refuse(e.Name, "is not a clean path")
		}
		for dir := path.Dir(e.Name); dir != "."; dir = path.Dir(dir) {
			if dirs[dir] {
				break
			}
			dirs[dir] = true
		}
		if e.Kind == Directory {
			dirs[e.Name] = true
			continue
		}
		all = append(all, e)
	}
	for dir := range dirs {
		all = append(all, Entry{Name: dir, Kind: Directory})
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(written(a), written(b)) })
	return all, nil
}

// written is the entry's name as it stands in the tar.
func written(e Entry) string {
	if e.Kind == Directory {
		return e.Name + "/"
	}
	return e.Name
}

func write(w io.Writer, entries []Entry) error {
	tw := tar.NewWriter(w)
	for _, e := range entries {
		if err := writeEntry(tw, e); err != nil {
			return fmt.Errorf("pack %s: %w", e.Name, err)
		}
	}
	return tw.Close()
}

func writeEntry(tw *tar.Writer, e Entry) error {
	header := &tar.Header{Name: written(e), Format: tar.FormatPAX, ModTime: time.Unix(0, 0)}
	switch e.Kind {
	case Directory:
		header.Typeflag, header.Mode = tar.TypeDir, 0o755
	case Link:
		header.Typeflag, header.Mode, header.Linkname = tar.TypeSymlink, 0o777, e.Target
	case Executable:
		header.Typeflag, header.Mode, header.Size = tar.TypeReg, 0o755, e.Size
	case File:
		header.Typeflag, header.Mode, header.Size = tar.TypeReg, 0o644, e.Size
	default:
		return refuse(e.Name, "has unknown kind %d", e.Kind)
	}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	r, err := e.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(tw, r)
	if err == nil && n != e.Size {
		err = fmt.Errorf("has %d bytes, %d were announced", n, e.Size)
	}
	return err
}
