package builder

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/giturl"
	"github.com/mesh-control/mesh/internal/lock"
	"github.com/mesh-control/mesh/internal/recipe"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// RecipeVersion is the version of the rules this builder follows.
const RecipeVersion = recipe.Version

// DefaultDeadline bounds a build whose job names no deadline.
const DefaultDeadline = time.Hour

// DefaultMaxArtifact is the largest artifact in bytes when [Builder] names none.
const DefaultMaxArtifact = 8 << 30

// DefaultMinFree is how many bytes a build leaves free when [Builder] says nothing.
const DefaultMinFree = 1 << 30

// Builder makes builds. Name, Work and Registry are required. Make one, [Builder.Start] it,
// and use it for one build at a time.
type Builder struct {
	Name string
	// Work is a directory of this builder alone; builds/ in it is swept at the start.
	Work string
	// Registry takes what is built. Nil builds without publishing.
	Registry *registry.Client
	// Engine is nil on a machine without one; image artifacts fail there.
	Engine *engine.Engine
	// Toolchains compile bundles, by language; a bundle of any other language fails.
	Toolchains map[string]toolchain.Toolchain
	// AllowLocal lets repositories be directories of this machine: a builder started by hand.
	AllowLocal bool
	// CloneFrom maps a repository's URL to the local directory it is read from instead; the
	// manifest records the URL. Needs AllowLocal.
	CloneFrom map[string]string
	// Open opens the credential of the repository at url, sealed to this builder; nil refuses
	// jobs with one.
	Open func(url string, sealed schema.Sealed) ([]byte, error)
	// SigningKey gives the key that provenance is signed with; nil publishes without.
	SigningKey  func() (ed25519.PrivateKey, error)
	MaxArtifact int64
	MaxClone    int64
	// MinFree is how many bytes stay free on the disks a build writes to; a build that takes
	// more is ended. Zero is DefaultMinFree, or a twentieth of a small disk.
	MinFree int64
	// Limits bound image builds and compilers in containers.
	Limits engine.Limits
	// OnPhase is called as each phase begins. It is for tests that end a builder there.
	OnPhase func(schema.Phase)
	Log     *slog.Logger

	lock *os.File
}

// Start takes the working directory for this process and removes what an earlier life left.
func (b *Builder) Start(ctx context.Context) error {
	if b.Log == nil {
		b.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(b.builds(), 0o700); err != nil {
		return fmt.Errorf("make working directory: %w", err)
	}
	held, err := lock.Exclusive(filepath.Join(b.Work, "lock"))
	if errors.Is(err, lock.ErrHeld) {
		return fmt.Errorf("lock working directory %s: another builder uses it", b.Work)
	}
	if err != nil {
		return fmt.Errorf("lock working directory: %w", err)
	}
	b.lock = held
	left, err := os.ReadDir(b.builds())
	if err != nil {
		return fmt.Errorf("sweep working directory: %w", err)
	}
	for _, dir := range left {
		if err := removeAll(filepath.Join(b.builds(), dir.Name())); err != nil {
			return fmt.Errorf("sweep working directory: %w", err)
		}
		b.Log.Info("removed an unfinished build", "build", dir.Name())
	}
	if b.Engine != nil {
		_, err := b.engineRoot(ctx)
		if err == nil {
			err = b.Engine.Sweep(ctx)
		}
		if err != nil {
			// Builds that need the engine will say so; the others need not wait for it.
			b.Log.Warn("engine cannot be swept", "error", err)
		}
	}
	return nil
}

// Close gives the working directory back.
func (b *Builder) Close() error {
	if b.lock == nil {
		return nil
	}
	return b.lock.Close()
}

func (b *Builder) builds() string { return filepath.Join(b.Work, "builds") }

// Build makes one build and says how it ended. Progress, which may be nil, is called with
// every line, from the goroutine that builds.
func (b *Builder) Build(ctx context.Context, job schema.Job, progress func(schema.Progress)) (result schema.Result) {
	r := &run{
		builder: b, job: job,
		journal: &journal{builder: b.Name, id: job.ID, listener: progress},
		result: schema.Result{
			Schema: schema.Version, ID: job.ID, Repository: giturl.Redact(job.Repository), Path: job.Path, Ref: job.Ref,
			Module: job.Module, Builder: b.Name, Started: time.Now().UTC(),
		},
	}
	limit := time.Now().Add(DefaultDeadline)
	if !job.Deadline.IsZero() {
		limit = job.Deadline
	}
	ctx, cancel := context.WithDeadlineCause(ctx, limit, errDeadline)
	defer cancel()
	ctx, stop := b.watchDisks(ctx)
	defer stop()
	err := r.guarded(ctx)
	return r.finish(ctx, err)
}

var errDeadline = errors.New("deadline of the build")

// guarded turns a panic, which is a mistake of ours about one job, into that job's failure.
func (r *run) guarded(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.builder.log().Error("build panicked", "build", r.job.ID, "error", p, "stack", string(debug.Stack()))
			err = failed(ReasonInternal, "", "builder panicked: %v", p)
		}
	}()
	return r.all(ctx)
}

func (b *Builder) log() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}

// removeAll removes a directory even where a toolchain made its files read-only.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
