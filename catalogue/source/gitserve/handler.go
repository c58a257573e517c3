// Package gitserve serves the repositories of a directory to builders: read-only, over git's
// smart HTTP, in this process. No git program is needed, so a catalogue in an image with
// nothing else in it can serve; and none is started, so no configuration or hook of a
// repository runs.
//
// It answers protocol version 0, which every client speaks: clones and fetches, full or of a
// depth, of anything the refs reach. Nothing is ever written. Packs are made without deltas,
// one object in memory at a time: machines beside each other have bandwidth, and a builder
// asks for one commit.
package gitserve

import (
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/mesh-control/mesh/internal/git"
)

const (
	service      = "git-upload-pack"
	requestBytes = 8 << 20 // wants and haves of one request
)

// Handler serves the repositories below Root: Root/a.git at /a.git.
type Handler struct {
	Root string
	Log  *slog.Logger // nil is silent
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/info/refs"):
		if r.URL.Query().Get("service") != service {
			http.Error(w, "this server is read-only and speaks git's smart protocol", http.StatusForbidden)
			return
		}
		h.serve(w, r, strings.TrimSuffix(r.URL.Path, "/info/refs"), advertise)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/"+service):
		h.serve(w, r, strings.TrimSuffix(r.URL.Path, "/"+service), upload)
	case strings.HasSuffix(r.URL.Path, "/git-receive-pack"):
		http.Error(w, "this server is read-only", http.StatusForbidden)
	default:
		http.NotFound(w, r)
	}
}

type answer func(w http.ResponseWriter, r *http.Request, repository *filesystem.Storage) error

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, name string, answer answer) {
	dir, ok := h.directory(name)
	if !ok {
		http.NotFound(w, r)
		return
	}
	repository := open(dir)
	defer repository.Close()
	w.Header().Set("Cache-Control", "no-cache")
	tracked := &trackedWriter{ResponseWriter: w}
	if err := answer(tracked, r, repository); err != nil {
		if h.Log != nil {
			h.Log.Warn("serve repository", "repository", name, "error", err)
		}
		if !tracked.wrote {
			http.Error(w, "the request cannot be answered", http.StatusBadRequest)
			return
		}
		panic(http.ErrAbortHandler) // so that the client sees a broken answer, not a short one
	}
}

// directory is the git directory that name means, if there is one below Root.
func (h *Handler) directory(name string) (string, bool) {
	local := filepath.FromSlash(strings.TrimPrefix(name, "/"))
	if !filepath.IsLocal(local) || strings.ContainsRune(local, 0) {
		return "", false
	}
	for _, candidate := range []string{local, local + ".git"} {
		full := filepath.Join(h.Root, candidate)
		if info, err := os.Stat(full); err != nil || !info.IsDir() {
			continue
		}
		if dir, err := git.Directory(full); err == nil {
			return dir, true
		}
	}
	return "", false
}

// open opens a repository so that objects are read when they are sent, not before.
func open(dir string) *filesystem.Storage {
	return filesystem.NewStorageWithOptions(osfs.New(dir, osfs.WithBoundOS()), cache.NewObjectLRU(4*cache.MiByte),
		filesystem.Options{LargeObjectThreshold: 64 << 10, AlternatesFS: osfs.New("/", osfs.WithBoundOS())})
}

// body is a request's, unpacked when the client packed it.
func body(r *http.Request) (io.Reader, error) {
	limited := io.LimitReader(r.Body, requestBytes)
	if r.Header.Get("Content-Encoding") != "gzip" {
		return limited, nil
	}
	unpacked, err := gzip.NewReader(limited)
	if err != nil {
		return nil, fmt.Errorf("unpack request: %w", err)
	}
	return io.LimitReader(unpacked, requestBytes), nil
}

type trackedWriter struct {
	http.ResponseWriter
	wrote bool
}

func (w *trackedWriter) Write(p []byte) (int, error) {
	w.wrote = true
	return w.ResponseWriter.Write(p)
}
