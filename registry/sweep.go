package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver"
)

// blobsRoot is where the library stores blobs, below the directory of a store.
const blobsRoot = "/docker/registry/v2/blobs/"

// collect removes what no manifest names and nobody has spoken of since before. The library
// marks and sweeps as for a registry that stands still; what makes it safe in one that serves
// is that its removals go through [sweep].
func (s *heldStore) collect(ctx context.Context, before time.Time, dry bool) (Collected, error) {
	swept := &sweep{StorageDriver: s.driver, held: s, before: before, dry: dry}
	namespace, err := storage.NewRegistry(ctx, swept)
	if err != nil {
		return Collected{}, err
	}
	// Manifests without a tag stay, and keep what they name: everything published has one.
	err = storage.MarkAndSweep(ctx, swept, namespace, storage.GCOpts{Quiet: true})
	return swept.did, err
}

// sweep is the store as a collection sees it.
type sweep struct {
	driver.StorageDriver
	held   *heldStore
	before time.Time
	dry    bool
	did    Collected
}

// Walk finds nothing where a directory does not exist. One that vanishes on the way is an
// error, and not of the kind that the library takes for the end of a listing: what it had not
// marked yet would be removed.
func (s *sweep) Walk(ctx context.Context, from string, fn driver.WalkFn, options ...func(*driver.WalkOptions)) error {
	if _, err := s.Stat(ctx, from); isMissing(err) {
		return nil
	}
	err := s.StorageDriver.Walk(ctx, from, func(info driver.FileInfo) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return fn(info)
	}, options...)
	if isMissing(err) {
		return fmt.Errorf("list %s: %w", from, err)
	}
	return err
}

func isMissing(err error) bool {
	var missing driver.PathNotFoundError
	return errors.As(err, &missing)
}

// Delete removes a blob, or the link that makes one part of a repository, unless it is young
// or spoken of.
func (s *sweep) Delete(ctx context.Context, target string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	target = strings.TrimSuffix(target, "/link") // the directory holds nothing else
	digest := "sha256:" + path.Base(target)
	if !digestForm.MatchString(digest) {
		return nil // nothing of ours
	}
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	info, err := os.Stat(s.held.data(digest))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kept := s.held.inUse[digest] > 0 || err == nil && !info.ModTime().Before(s.before)
	if strings.HasPrefix(target, blobsRoot) && err == nil {
		if kept {
			s.did.Young++
		} else {
			s.did.Blobs++
			s.did.Bytes += info.Size()
		}
	}
	if kept || s.dry {
		return nil
	}
	if err := s.StorageDriver.Delete(ctx, target); err != nil && !isMissing(err) {
		return err
	}
	return nil
}
