package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// ErrTooLarge is returned when an archive holds more bytes than it was announced to.
var ErrTooLarge = errors.New("archive is larger than announced")

// Unpack writes the tar in r beneath dir, which is made when missing and must be empty. At
// most limit bytes are read and written: the announced size of the archive. The first
// strip components of every name are dropped; a file that has no more than those is
// refused, a directory is passed over.
//
// A broken rule is a [*Refused]. Nothing is synced to disk: the caller does that before it
// switches to the new tree.
func Unpack(r io.Reader, dir string, limit int64, strip int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := empty(root); err != nil {
		return err
	}
	u := &unpacking{root: root, tree: newTree(), made: map[string]bool{}, strip: strip, left: limit}
	bounded := &bounded{r: r, left: limit}
	tr := tar.NewReader(bounded)
	for {
		header, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := u.entry(header, tr); err != nil {
			return err
		}
	}
	if err := u.tree.checkLinks(); err != nil {
		return err
	}
	for _, name := range sortedKeys(u.tree.targets) {
		if err := u.parent(name); err != nil {
			return err
		}
		if err := root.Symlink(u.tree.targets[name], name); err != nil {
			return err
		}
	}
	// What follows the end marker is padding; reading it keeps a digest taken by the
	// caller over r complete, and counts.
	_, err = io.Copy(io.Discard, bounded)
	return err
}

func empty(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if names, err := d.Readdirnames(1); err == nil {
		return fmt.Errorf("unpack into %s: directory is not empty, it holds %s", root.Name(), names[0])
	} else if err != io.EOF {
		return err
	}
	return nil
}

type unpacking struct {
	root  *os.Root
	tree  *tree
	made  map[string]bool // directories
	strip int
	left  int64
}

func (u *unpacking) entry(header *tar.Header, r io.Reader) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if why := badName(header.Name); why != "" && header.Name != "." && header.Name != "./" {
		return refuse(header.Name, "%s", why)
	}
	if header.Mode&0o7000 != 0 {
		return refuse(header.Name, "has a set-user-id, set-group-id or sticky bit")
	}
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return refuse(header.Name, "is a sparse file")
		}
	}
	kind, err := kindOf(header)
	if err != nil {
		return err
	}
	name, err := u.stripped(path.Clean(header.Name), kind)
	if err != nil || name == "" {
		return err
	}
	if err := u.tree.add(name, kind, header.Linkname, true); err != nil {
		return err
	}
	switch kind {
	case Directory:
		return u.directory(name)
	case Link:
		return nil // made last
	}
	return u.file(name, kind, header.Size, r)
}

func kindOf(header *tar.Header) (Kind, error) {
	switch header.Typeflag {
	case tar.TypeDir:
		return Directory, nil
	case tar.TypeSymlink:
		return Link, nil
	case tar.TypeReg:
		if header.Mode&0o111 != 0 {
			return Executable, nil
		}
		return File, nil
	case tar.TypeLink:
		return 0, refuse(header.Name, "is a hard link")
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return 0, refuse(header.Name, "is a device or pipe")
	}
	return 0, refuse(header.Name, "has entry type %q", header.Typeflag)
}

// stripped drops leading components; "" means that the entry makes nothing.
func (u *unpacking) stripped(name string, kind Kind) (string, error) {
	if name == "." {
		return "", nil
	}
	parts := strings.Split(name, "/")
	if len(parts) > u.strip {
		return path.Join(parts[u.strip:]...), nil
	}
	if kind == Directory {
		return "", nil
	}
	return "", refuse(name, "has no more than the %d leading components to be dropped", u.strip)
}

func (u *unpacking) directory(name string) error {
	if name == "." || u.made[name] {
		return nil
	}
	if err := u.directory(path.Dir(name)); err != nil {
		return err
	}
	if err := u.root.Mkdir(name, 0o755); err != nil {
		return err
	}
	u.made[name] = true
	// The process's umask has no say in what an archive makes.
	return u.root.Chmod(name, 0o755)
}

// parent makes the directory a name lies in. All its parts are directories by then.
func (u *unpacking) parent(name string) error {
	return u.directory(path.Dir(name))
}

func (u *unpacking) file(name string, kind Kind, size int64, r io.Reader) error {
	if u.left -= size; u.left < 0 {
		return fmt.Errorf("unpack %s: %w", name, ErrTooLarge)
	}
	if err := u.parent(name); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if kind == Executable {
		mode = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, r); err != nil {
		f.Close()
		return fmt.Errorf("unpack %s: %w", name, err)
	}
	if err := f.Chmod(mode); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// bounded fails, rather than ends, when more than left bytes are read.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, ErrTooLarge
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, ErrTooLarge
	}
	return n, err
}
