package clone

import (
	"errors"
	"os"
	"sync/atomic"

	"github.com/go-git/go-billy/v5"
)

var errLimit = errors.New("repository is larger than the builder may fetch")

// limited is a file system that takes so many bytes and then fails.
type limited struct {
	billy.Filesystem
	left int64
}

func (l *limited) wrap(f billy.File, err error) (billy.File, error) {
	if err != nil {
		return nil, err
	}
	return &limitedFile{File: f, fs: l}, nil
}

// Create implements [billy.Basic].
func (l *limited) Create(name string) (billy.File, error) { return l.wrap(l.Filesystem.Create(name)) }

// OpenFile implements [billy.Basic].
func (l *limited) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
	return l.wrap(l.Filesystem.OpenFile(name, flag, perm))
}

// TempFile implements [billy.TempFile].
func (l *limited) TempFile(dir, prefix string) (billy.File, error) {
	return l.wrap(l.Filesystem.TempFile(dir, prefix))
}

type limitedFile struct {
	billy.File
	fs *limited
}

func (f *limitedFile) Write(p []byte) (int, error) {
	if atomic.AddInt64(&f.fs.left, -int64(len(p))) < 0 {
		return 0, errLimit
	}
	return f.File.Write(p)
}
