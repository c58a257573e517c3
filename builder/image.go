package builder

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// contextDockerfile is the name the Dockerfile has in the context we send. The engine takes
// it out again before the build, because the .dockerignore we send names it.
const contextDockerfile = ".mesh.dockerfile"

// image builds a Dockerfile with the engine and normalises what comes out.
func (r *run) image(ctx context.Context, s step) (*staged, error) {
	if r.builder.Engine == nil {
		return nil, failed(ReasonNoEngine, "start a builder on a machine with a container engine", "an image needs a container engine")
	}
	text, err := r.clone.Read(s.dockerfile)
	if err != nil {
		return nil, failed(ReasonDockerfile, "", "%w", err)
	}
	file, err := parseDockerfile(text, s.artifact.Args)
	if err != nil {
		return nil, err
	}
	bases, from, err := r.bases(ctx, s, file)
	defer r.forget(ctx, bases)
	if err != nil {
		return nil, err
	}
	tag := r.builder.Engine.Tag(filepath.Base(r.dir) + "-" + s.name)
	defer r.clear(ctx)
	defer r.forget(ctx, map[string]string{"": tag})
	if err := r.engineBuild(ctx, s, file.rewrite(bases, r.builder.Engine.Label()), tag); err != nil {
		return nil, err
	}
	var keep []string
	var used []provenance.Resource
	for _, reference := range slices.Sorted(maps.Keys(from)) {
		keep = append(keep, from[reference].DiffIDs...)
		used = append(used, provenance.Image(reference, from[reference].Digest))
	}
	made, err := r.takeImage(ctx, s, tag, keep)
	if err == nil {
		made.used = used
	}
	return made, err
}

// bases brings the images from outside to the engine. It gives the name of each there, and
// what each was.
func (r *run) bases(ctx context.Context, s step, file *dockerfile) (names map[string]string, from map[string]registry.Saved, err error) {
	names, from = map[string]string{}, map[string]registry.Saved{}
	for _, reference := range file.references() {
		if r.builder.Registry == nil {
			return names, nil, refused(ReasonUpstream, "start the builder with --store-credential", "FROM %s needs the mesh's registry", reference)
		}
		sum := sha256.Sum256([]byte(reference))
		tag := r.builder.Engine.Tag(filepath.Base(r.dir) + "-base-" + hex.EncodeToString(sum[:6]))
		scratch, err := r.scratch(s.name, "base")
		if err != nil {
			return names, nil, err
		}
		var image registry.Saved
		pr, pw := io.Pipe()
		saved := make(chan error, 1)
		go func() {
			var err error
			image, err = r.builder.Registry.SaveImage(ctx, reference, platform, tag, scratch, pw)
			pw.CloseWithError(err)
			saved <- err
		}()
		loadErr := r.builder.Engine.Load(ctx, pr)
		pr.CloseWithError(io.ErrClosedPipe)
		if err := <-saved; err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return names, nil, failed(ReasonUpstream, "see that the reference exists and its registry answers", "FROM %s: %w", reference, err)
		}
		if loadErr != nil {
			return names, nil, failed(ReasonImage, "", "FROM %s: %w", reference, loadErr)
		}
		names[reference], from[reference] = tag, image
	}
	return names, from, nil
}

// tidying bounds what is done in the engine after a build's own end.
const tidying = 5 * time.Second

// clear removes the steps of an image build from the engine.
func (r *run) clear(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidying)
	defer cancel()
	if err := r.builder.Engine.Clear(ctx); err != nil {
		r.builder.log().Warn("an image build is not all removed from the engine", "build", r.job.ID, "error", err)
	}
}

// forget takes names away from the engine, also when the build was cancelled.
func (r *run) forget(ctx context.Context, tags map[string]string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidying)
	defer cancel()
	for _, tag := range tags {
		if err := r.builder.Engine.Remove(ctx, tag); err != nil {
			r.builder.log().Warn("image of a build cannot be removed", "build", r.job.ID, "error", err)
		}
	}
}

func (r *run) engineBuild(ctx context.Context, s step, text []byte, tag string) error {
	entries, err := r.clone.Entries(s.context)
	if err != nil {
		return err
	}
	if entries, err = r.ignore(s, entries); err != nil {
		return err
	}
	entries = append(entries, memoryFile(contextDockerfile, text), memoryFile(".dockerignore", []byte(".dockerignore\n"+contextDockerfile+"\n")))
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := archive.PackContext(pw, entries)
		pw.CloseWithError(err)
		packed <- err
	}()
	err = r.builder.Engine.Build(ctx, engine.BuildSpec{
		Context: pr, Dockerfile: contextDockerfile, Args: s.artifact.Args, Network: "none", Limits: r.builder.Limits, Tag: tag,
	}, func(line string) { r.say(s.name, "%s", line) })
	pr.CloseWithError(io.ErrClosedPipe)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return packFailure(packErr)
	}
	if err != nil {
		return failed(ReasonImage, "the log has what the engine said", "%w", err)
	}
	return nil
}

func memoryFile(name string, data []byte) archive.Entry {
	return archive.Entry{Name: name, Size: int64(len(data)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	}}
}

// ignore leaves out what .dockerignore names: the Dockerfile's own before the context's. The
// file itself never enters the context.
func (r *run) ignore(s step, entries []archive.Entry) ([]archive.Entry, error) {
	data, err := r.clone.Read(s.dockerfile + ".dockerignore")
	if errors.Is(err, clone.ErrNotFound) {
		data, err = r.clone.Read(path.Join(s.context, ".dockerignore"))
	}
	if errors.Is(err, clone.ErrNotFound) {
		data, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	patterns, err := ignorefile.ReadAll(bytes.NewReader(data))
	if err != nil {
		return nil, failed(ReasonDockerfile, "", "read .dockerignore: %w", err)
	}
	matcher, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, failed(ReasonDockerfile, "", "read .dockerignore: %w", err)
	}
	var kept []archive.Entry
	for _, e := range entries {
		out, err := matcher.MatchesOrParentMatches(e.Name)
		if err != nil {
			return nil, failed(ReasonDockerfile, "", "apply .dockerignore to %s: %w", e.Name, err)
		}
		if !out && e.Name != ".dockerignore" && e.Name != contextDockerfile {
			kept = append(kept, e)
		}
	}
	return kept, nil
}

// takeImage saves the built image and stages it as a layout.
func (r *run) takeImage(ctx context.Context, s step, tag string, keep []string) (*staged, error) {
	layout, err := r.scratch(s.name, "image")
	if err != nil {
		return nil, err
	}
	saved := filepath.Join(r.dir, s.name+".saved.tar")
	f, err := os.Create(saved)
	if err != nil {
		return nil, err
	}
	defer os.Remove(saved)
	err = r.builder.Engine.Save(ctx, tag, &measured{ctx: ctx, w: f, hash: sha256.New(), left: r.maxArtifact()})
	if err := errors.Join(err, f.Close()); err != nil {
		if errors.Is(err, errTooLarge) {
			return nil, packFailure(err)
		}
		return nil, failed(ReasonImage, "", "%w", err)
	}
	image, err := registry.Normalise(saved, layout, keep)
	if err != nil {
		return nil, failed(ReasonImage, "", "%w", err)
	}
	for _, p := range image.Platforms {
		if !strings.HasPrefix(p, "linux/") {
			return nil, failed(ReasonImage, "", "image is for %s", p)
		}
	}
	return &staged{layout: layout, built: schema.Built{
		Kind: schema.KindImage, Digest: image.Digest, Size: image.Size, MediaType: image.MediaType, Platforms: image.Platforms,
	}}, nil
}
