package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/schema"
)

// An archive's path is a link to one version's directory beside it, ".<name>.<digest>-<strip>".
// So switching is one rename, the link says which version is there, and the version before
// stays for as long as it may be needed.
var versionPattern = regexp.MustCompile(`^[0-9a-f]{32}-\d+$`)

func versionName(name string, r schema.Resource) string {
	digest := strings.TrimPrefix(r.Digest, "sha256:")
	return fmt.Sprintf(".%s.%.32s-%d", filepath.Base(name), digest, r.Strip)
}

// isVersion says whether a directory's name is one this host gives to versions of base.
func isVersion(name, base string) bool {
	rest, found := strings.CutPrefix(name, "."+base+".")
	return found && versionPattern.MatchString(rest)
}

// stageArchive fetches, verifies and unpacks a version beside the path. A version that stands
// there is complete, because it got its name last.
func (h *Host) stageArchive(ctx context.Context, w Wanted) error {
	name := h.layout.Path(w.Path)
	version := filepath.Join(filepath.Dir(name), versionName(name, w.Resource))
	if _, err := os.Stat(version); err == nil {
		return nil
	}
	if err := makeParents(name); err != nil {
		return err
	}
	tarball, size, err := h.fetch(ctx, w.Resource)
	if err != nil {
		return err
	}
	defer os.Remove(tarball)
	f, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer f.Close()
	unfinished := version + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := needSpace(filepath.Dir(name), size); err != nil {
		return err
	}
	if err := archive.Unpack(f, unfinished, size, w.Strip); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	if err := os.Chmod(unfinished, 0o755); err != nil {
		return err
	}
	if err := syncFilesystem(unfinished); err != nil {
		return err
	}
	if err := os.Rename(unfinished, version); err != nil {
		return err
	}
	h.at(PointUnpacked)
	return syncDir(filepath.Dir(name))
}

// syncFilesystem is one call where syncing each of thousands of files would be thousands.
func syncFilesystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd())) //nolint:gosec // a descriptor
}

// fetch downloads a blob into the state directory and checks that it is what was declared.
func (h *Host) fetch(ctx context.Context, r schema.Resource) (name string, size int64, err error) {
	body, announced, err := h.open(ctx, r)
	if err != nil {
		return "", 0, err
	}
	defer body.Close()
	dir := h.layout.state("staging")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", 0, err
	}
	if err := needSpace(dir, announced); err != nil {
		return "", 0, err
	}
	f, err := os.CreateTemp(dir, "archive-*.tar")
	if err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	size, err = copyBounded(io.MultiWriter(f, sum), body, announced, dir)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", 0, errors.Join(fmt.Errorf("fetch %s: %w", r.Source, err), os.Remove(f.Name()))
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != r.Digest {
		err := fmt.Errorf("fetch %s: the bytes have digest %s, declared is %s", r.Source, got, r.Digest)
		return "", 0, errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), size, nil
}

// copyBounded copies what was announced, or, from a server that announces nothing, no more than
// the disk has room for.
func copyBounded(to io.Writer, from io.Reader, announced int64, dir string) (int64, error) {
	limit := announced
	if limit == 0 {
		limit = max(0, freeSpace(dir)-spareSpace)
	}
	n, err := io.Copy(to, io.LimitReader(from, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("more than %d MB come, and there is no room for more in %s", limit>>20, dir)
	}
	return n, err
}

// open asks the mesh's registry for a source that names it, and any other server plainly.
func (h *Host) open(ctx context.Context, r schema.Resource) (io.ReadCloser, int64, error) {
	source, err := url.Parse(r.Source)
	if err != nil {
		return nil, 0, fmt.Errorf("source of %s: %w", r.ID, err)
	}
	if source.Host == schema.RegistryName {
		repository, digest, found := strings.Cut(strings.TrimPrefix(source.Path, "/v2/"), "/blobs/")
		if !found || digest != r.Digest {
			return nil, 0, fmt.Errorf("source %s is not the blob %s", r.Source, r.Digest)
		}
		return h.store.blob(ctx, repository, digest)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Source, nil)
	if err != nil {
		return nil, 0, err
	}
	response, err := h.web.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("fetch %s: %w", r.Source, err)
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, 0, fmt.Errorf("fetch %s: %s", r.Source, response.Status)
	}
	return response.Body, max(0, response.ContentLength), nil
}

// switchArchive points the path at the staged version, in one step, and clears away versions
// older than the one before.
func (h *Host) switchArchive(w Wanted) error {
	name := h.layout.Path(w.Path)
	previous, _ := os.Readlink(name)
	current := versionName(name, w.Resource)
	if err := pointTo(name, current); err != nil {
		return err
	}
	h.at(PointArchive)
	return clearVersions(name, current, previous)
}

func pointTo(name, target string) error {
	link := name + fmt.Sprintf(".link-%d", time.Now().UnixNano())
	if err := os.Symlink(target, link); err != nil {
		return err
	}
	if err := os.Rename(link, name); err != nil {
		return errors.Join(err, os.Remove(link))
	}
	return syncDir(filepath.Dir(name))
}

// clearVersions removes every version of an archive but those kept.
func clearVersions(name string, keep ...string) error {
	base := filepath.Base(name)
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		kept := false
		for _, k := range keep {
			kept = kept || k == entry.Name()
		}
		if kept || !isVersion(strings.TrimSuffix(entry.Name(), ".unfinished"), base) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(filepath.Dir(name), entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeArchive takes away the link and every version.
func removeArchive(name string) error {
	target, err := os.Readlink(name)
	if err == nil && isVersion(target, filepath.Base(name)) {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	if err := clearVersions(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
