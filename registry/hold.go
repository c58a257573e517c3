package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/distribution/distribution/v3/registry/storage/driver"
)

// heldStore keeps a collection from the blobs that somebody is about to name. Whoever may push
// and asks for a blob, sends it, or names it in a manifest makes its file new, and a collection
// leaves what is younger than its grace; what a request speaks of it leaves while the request
// is served.
type heldStore struct {
	dir    string
	driver driver.StorageDriver // of the same directory

	mu    sync.Mutex
	inUse map[string]int // digests, with how many requests speak of them
}

func newHeldStore(dir string, driver driver.StorageDriver) *heldStore {
	return &heldStore{dir: dir, driver: driver, inUse: map[string]int{}}
}

// use keeps digests from being removed until the function it gives is called.
func (s *heldStore) use(digests []string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, digest := range digests {
		s.inUse[digest]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, digest := range digests {
			if s.inUse[digest]--; s.inUse[digest] == 0 {
				delete(s.inUse, digest)
			}
		}
	}
}

var spokenOf = regexp.MustCompile(`/(?:blobs|manifests)/(sha256:[0-9a-f]{64})$`)

// serve serves a request of somebody who may push, and keeps what it speaks of.
func (s *heldStore) serve(w http.ResponseWriter, r *http.Request, next http.Handler) error {
	digests, err := spoken(w, r)
	if err != nil {
		return err
	}
	defer s.use(digests)()
	if r.Method != http.MethodDelete {
		if err := s.renew(digests); err != nil {
			refuse(w, http.StatusInternalServerError, "UNKNOWN", "the store does not take a change")
			return fmt.Errorf("renew the age of a blob: %w", err)
		}
	}
	next.ServeHTTP(w, r)
	return nil
}

// spoken are the digests that a request speaks of, those in a manifest's body included. A body
// that cannot be read is answered.
func spoken(w http.ResponseWriter, r *http.Request) ([]string, error) {
	var digests []string
	if match := spokenOf.FindStringSubmatch(r.URL.Path); match != nil {
		digests = append(digests, match[1])
	}
	query := r.URL.Query()
	digests = append(append(digests, query["digest"]...), query["mount"]...)
	if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/manifests/") {
		return digests, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxDocument+1))
	if err != nil {
		refuse(w, http.StatusBadRequest, "MANIFEST_INVALID", "the manifest did not arrive whole")
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if len(body) > maxDocument {
		err := fmt.Errorf("the manifest is larger than %d bytes", maxDocument)
		refuse(w, http.StatusRequestEntityTooLarge, "MANIFEST_INVALID", err.Error())
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	digests = append(digests, digestOf(body))
	if named, err := parseReferences(body); err == nil { // else the handler refuses it
		digests = append(digests, named.all()...)
	}
	return digests, nil
}

// renew makes blobs new.
func (s *heldStore) renew(digests []string) error {
	now := time.Now()
	for _, digest := range digests {
		if !digestForm.MatchString(digest) {
			continue
		}
		if err := os.Chtimes(s.data(digest), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// data is the file of a blob's bytes.
func (s *heldStore) data(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return filepath.Join(s.dir, filepath.FromSlash(blobsRoot), "sha256", hex[:2], hex, "data")
}
