package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// owner is a numeric user and group; -1 leaves what is there.
type owner struct{ uid, gid int }

var keepOwner = owner{-1, -1}

// parseOwner reads "user", "user:group" or numbers. A user without a group brings its own.
func parseOwner(text string) (owner, error) {
	if text == "" {
		return keepOwner, nil
	}
	name, group, hasGroup := strings.Cut(text, ":")
	o := keepOwner
	if id, err := strconv.Atoi(name); err == nil {
		o.uid, o.gid = id, id
	} else {
		found, err := user.Lookup(name)
		if err != nil {
			return o, fmt.Errorf("owner %q: %w", text, err)
		}
		o.uid, _ = strconv.Atoi(found.Uid)
		o.gid, _ = strconv.Atoi(found.Gid)
	}
	if !hasGroup {
		return o, nil
	}
	if id, err := strconv.Atoi(group); err == nil {
		o.gid = id
		return o, nil
	}
	found, err := user.LookupGroup(group)
	if err != nil {
		return o, fmt.Errorf("owner %q: %w", text, err)
	}
	o.gid, err = strconv.Atoi(found.Gid)
	return o, err
}

// parseMode reads octal digits; "" is the default.
func parseMode(text string, byDefault fs.FileMode) (fs.FileMode, error) {
	if text == "" {
		return byDefault, nil
	}
	bits, err := strconv.ParseUint(text, 8, 12)
	if err != nil {
		return 0, fmt.Errorf("mode %q: %w", text, err)
	}
	return fs.FileMode(bits), nil
}

// writeFile replaces a file in one step: a reader sees the old or the new, never part of
// one, and at no moment a wider mode than asked for. When it returns, the new one survives a
// power cut.
func writeFile(name string, data []byte, mode fs.FileMode, by owner) error {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, "."+filepath.Base(name)+".*") // 0600 from the first byte
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing after the rename
	if err := fill(f, data, mode, by); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return syncDir(dir)
}

func fill(f *os.File, data []byte, mode fs.FileMode, by owner) error {
	if err := f.Chmod(mode & 0o600); err != nil {
		return err
	}
	if by != keepOwner {
		if err := f.Chown(by.uid, by.gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// makeParents makes the directories above name that are missing, 0755.
func makeParents(name string) error {
	return os.MkdirAll(filepath.Dir(name), 0o755)
}

// makeDirectory makes or adjusts a directory. made says whether it was missing. Without a
// declared mode or owner one that exists is left as it is.
func makeDirectory(name, mode, ownedBy string) (made bool, err error) {
	by, err := parseOwner(ownedBy)
	if err != nil {
		return false, err
	}
	bits, err := parseMode(mode, 0o755)
	if err != nil {
		return false, err
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := makeParents(name); err != nil {
			return false, err
		}
		if err := os.Mkdir(name, bits&0o700); err != nil {
			return false, err
		}
		made = true
	case err != nil:
		return false, err
	case !info.IsDir():
		return false, fmt.Errorf("%s exists and is not a directory", name)
	}
	if by != keepOwner {
		if err := os.Chown(name, by.uid, by.gid); err != nil {
			return made, err
		}
	}
	if made || mode != "" {
		if err := os.Chmod(name, bits); err != nil {
			return made, err
		}
	}
	return made, syncDir(filepath.Dir(name))
}

// ownedAs says whether info has the owner, where one was asked for.
func ownedAs(info fs.FileInfo, by owner) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || (by.uid < 0 || int(stat.Uid) == by.uid) && (by.gid < 0 || int(stat.Gid) == by.gid)
}

// freeSpace is how many bytes can be written beneath dir.
func freeSpace(dir string) int64 {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0
	}
	return int64(stat.Bavail) * stat.Bsize //nolint:gosec // no file system is that large
}

// spareSpace in bytes is left free on a disk, for everything else that writes there.
const spareSpace = 100 << 20

// needSpace refuses to begin writing what would not fit, with a tenth of a gigabyte to spare.
func needSpace(dir string, size int64) error {
	if free := freeSpace(dir); free < size+spareSpace {
		return fmt.Errorf("no space in %s: %d MB free, %d MB needed", dir, free>>20, (size+spareSpace)>>20)
	}
	return nil
}
