package toolchain

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/mesh-control/mesh/builder/archive"
)

// maxRead is the most a file that is read whole may have, in bytes: a lock file of a large
// application has some megabytes.
const maxRead = 64 << 20

// source is a bundle's files by name.
type source map[string]archive.Entry

func newSource(entries []archive.Entry) source {
	s := make(source, len(entries))
	for _, e := range entries {
		s[e.Name] = e
	}
	return s
}

func (s source) has(name string) bool {
	_, ok := s[name]
	return ok
}

// beneath says whether anything lies in a directory.
func (s source) beneath(dir string) bool {
	for name := range s {
		if strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	return false
}

// read gives a file's bytes, or nil when there is none.
func (s source) read(name string) ([]byte, error) {
	e, ok := s[name]
	if !ok {
		return nil, nil
	}
	if e.Open == nil || e.Size > maxRead {
		return nil, fail(ReasonSource, "", "%s is no file of at most %d bytes", name, maxRead)
	}
	r, err := e.Open()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// text is a file of an archive that is held in memory.
func text(name, content string) archive.Entry {
	return archive.Entry{Name: name, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

// moved gives entries beneath another directory, without those that skip names.
func moved(entries []archive.Entry, dir string, skip func(name string) bool) []archive.Entry {
	var out []archive.Entry
	for _, e := range entries {
		if skip == nil || !skip(e.Name) {
			e.Name = path.Join(dir, e.Name)
			out = append(out, e)
		}
	}
	return out
}

// walk lists the files and links beneath a directory on disk.
func walk(dir string) ([]archive.Entry, error) {
	var entries []archive.Entry
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := archive.Entry{Name: filepath.ToSlash(relative), Size: info.Size(), Open: func() (io.ReadCloser, error) { return os.Open(name) }}
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			e.Kind, e.Size, e.Open = archive.Link, 0, nil
			if e.Target, err = os.Readlink(name); err != nil {
				return err
			}
		case !info.Mode().IsRegular():
			return fail(ReasonCompile, "", "%s is neither file nor link", e.Name)
		case info.Mode()&0o111 != 0:
			e.Kind = archive.Executable
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// unpack writes a container's tar of one directory beneath dir, by the archive rules.
func unpack(r io.Reader, dir string, limit int64) error {
	return archive.Unpack(r, dir, limit, 1)
}

// writeOut writes entries to disk by way of the archive rules, which bound where they land.
func writeOut(entries []archive.Entry, dir string) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(archive.Pack(w, entries)) }()
	defer r.Close()
	return archive.Unpack(r, dir, 1<<62, 0)
}
