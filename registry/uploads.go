package registry

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
)

// uploads removes what the library leaves of an upload that was given up: it writes the state
// of a hash after it has removed the upload's directory, and its purging finds only uploads
// that still say when they began.
type uploads struct {
	store string // the library's root directory
	next  http.Handler
	log   *slog.Logger
}

var uploadPath = regexp.MustCompile(`^/v2/(.+)/blobs/uploads/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// ServeHTTP stands behind the guard, which has checked that the path names a repository.
func (u *uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	match := uploadPath.FindStringSubmatch(r.URL.Path)
	if r.Method != http.MethodDelete || match == nil {
		u.next.ServeHTTP(w, r)
		return
	}
	seen := &statusWriter{ResponseWriter: w}
	u.next.ServeHTTP(seen, r)
	if seen.status != http.StatusNoContent {
		return
	}
	left := filepath.Join(u.store, "docker/registry/v2/repositories", filepath.FromSlash(match[1]), "_uploads", match[2])
	if err := os.RemoveAll(left); err != nil {
		u.log.Warn("an upload that was given up cannot be removed", "directory", left, "error", err)
	}
}

// statusWriter remembers the status that was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}
