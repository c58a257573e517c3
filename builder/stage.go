package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// staged is an artifact that is made and not yet published.
type staged struct {
	built    schema.Built
	blob     string                // file of an archive or bundle
	layout   string                // OCI layout of an image, or of the image a bundle became
	upstream string                // reference by digest, of what is to be mirrored
	used     []provenance.Resource // images it was made with and on
	sbom     []byte                // list of what a bundle was made of
}

// platform is what this builder compiles for.
var platform = "linux/" + runtime.GOARCH

// build makes every artifact, one after the other.
func (r *run) build(ctx context.Context) error {
	r.staged = map[string]*staged{}
	for _, s := range r.plan {
		err := r.during(ctx, schema.PhaseBuild, s.name, func(ctx context.Context) error {
			made, err := r.make(ctx, s)
			if err != nil {
				return fmt.Errorf("artifact %s: %w", s.name, err)
			}
			r.staged[s.name] = made
			r.say(s.name, "made %s, %d bytes", made.built.Digest, made.built.Size)
			if r.job.Verify {
				return r.again(ctx, s, made)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) make(ctx context.Context, s step) (*staged, error) {
	switch s.artifact.Kind {
	case schema.KindUpstream:
		return r.lookUp(ctx, s)
	case schema.KindArchive:
		entries, err := r.clone.Entries(s.path)
		if err != nil {
			return nil, err
		}
		return r.pack(ctx, s, entries)
	case schema.KindBundle:
		return r.bundle(ctx, s)
	}
	return r.image(ctx, s)
}

func (r *run) maxArtifact() int64 {
	if r.builder.MaxArtifact > 0 {
		return r.builder.MaxArtifact
	}
	return DefaultMaxArtifact
}

// scratch gives a directory of the build for one artifact and purpose.
func (r *run) scratch(artifact, purpose string) (string, error) {
	dir := filepath.Join(r.dir, artifact+"."+purpose)
	return dir, os.MkdirAll(dir, 0o700)
}

// pack stages entries as one tar.
func (r *run) pack(ctx context.Context, s step, entries []archive.Entry) (*staged, error) {
	name := filepath.Join(r.dir, s.name+".tar")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := &measured{ctx: ctx, w: f, hash: sha256.New(), left: r.maxArtifact()}
	if err := archive.Pack(w, entries); err != nil {
		return nil, packFailure(err)
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return &staged{blob: name, built: schema.Built{
		Kind: s.artifact.Kind, Digest: w.digest(), Size: w.size, MediaType: schema.MediaTypeTar,
	}}, nil
}

func packFailure(err error) error {
	var rule *archive.Refused
	switch {
	case errors.As(err, &rule):
		return failed(ReasonArchive, "hosts would refuse to unpack it", "%w", err)
	case errors.Is(err, errTooLarge):
		return failed(ReasonTooLarge, "raise the builder's limit or make it smaller", "%w", err)
	}
	return err
}

var errTooLarge = errors.New("artifact is larger than this builder makes")

// measured counts and hashes what passes, up to a limit, while its context lasts.
type measured struct {
	ctx  context.Context
	w    io.Writer
	hash hash.Hash
	size int64
	left int64
}

func (m *measured) Write(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	if m.left -= int64(len(p)); m.left < 0 {
		return 0, errTooLarge
	}
	n, err := m.w.Write(p)
	m.size += int64(n)
	m.hash.Write(p[:n])
	return n, err
}

func (m *measured) digest() string { return "sha256:" + hex.EncodeToString(m.hash.Sum(nil)) }

// lookUp fixes what an upstream reference means now. The copying is part of publishing.
func (r *run) lookUp(ctx context.Context, s step) (*staged, error) {
	if r.builder.Registry == nil {
		return nil, refused(ReasonUpstream, "start the builder with --store-credential", "an upstream image needs the mesh's registry")
	}
	found, err := r.builder.Registry.Inspect(ctx, s.artifact.Reference, s.artifact.Platforms)
	if err != nil {
		return nil, failed(ReasonUpstream, "see that the reference exists and its registry answers", "%w", err)
	}
	ref, err := registry.ParseReference(s.artifact.Reference)
	if err != nil {
		return nil, failed(ReasonUpstream, "", "%w", err)
	}
	return &staged{
		upstream: ref.Host + "/" + ref.Path + "@" + found.Upstream,
		built: schema.Built{
			Kind: s.artifact.Kind, Digest: found.Digest, Size: found.Size, MediaType: found.MediaType, Platforms: found.Platforms,
			Upstream: &schema.BuiltUpstream{Reference: s.artifact.Reference, Digest: found.Upstream},
		},
	}, nil
}
