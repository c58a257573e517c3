package builder

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/registry"
)

// Toolchain compiles bundles of one language: [HostGo] with the machine's own, [ContainerGo]
// in a container. Both give the same bytes for the same version.
type Toolchain interface {
	// Version is what the recipe takes in.
	Version(ctx context.Context) (string, error)
	// Compile leaves one executable per program in c.Out.
	Compile(ctx context.Context, c Compilation) error
}

// Compilation is one call of a [Toolchain].
type Compilation struct {
	Source  []archive.Entry
	Package string // "./cmd/x"
	Scratch string // an empty directory of this compilation
	Out     string // an empty directory for the programs
	Log     func(line string)
}

// bundle compiles and packs; a container's bundle becomes an image as well.
func (r *run) bundle(ctx context.Context, s step) (*staged, error) {
	if s.language != "go" || r.builder.Go == nil {
		return nil, failed(ReasonNoToolchain, "start a builder that has it", "this builder has no toolchain for %s", s.language)
	}
	source, err := r.clone.Entries(s.path)
	if err != nil {
		return nil, err
	}
	scratch, err := r.scratch(s.name, "compile")
	if err != nil {
		return nil, err
	}
	out, err := r.scratch(s.name, "out")
	if err != nil {
		return nil, err
	}
	pkg := s.artifact.Package
	if pkg == "" {
		pkg = "."
	}
	err = r.builder.Go.Compile(ctx, Compilation{
		Source: source, Package: pkg, Scratch: scratch, Out: out,
		Log: func(line string) { r.say(s.name, "%s", line) },
	})
	var failure *Failure
	if err != nil && !errors.As(err, &failure) {
		return nil, failed(ReasonCompile, "the log has what the compiler said", "compile: %w", err)
	}
	if err != nil {
		return nil, err
	}
	programs, err := executables(out)
	if err != nil {
		return nil, err
	}
	if len(programs) == 0 {
		return nil, failed(ReasonCompile, `set "package" to a main package`, "compile %s: it has no main package", pkg)
	}
	made, err := r.pack(ctx, s, programs)
	if err != nil {
		return nil, err
	}
	made.built.Platforms = []string{platform}
	if s.asImage {
		err = r.bundleImage(ctx, s, programs, made)
	}
	return made, err
}

// executables lists the programs in a directory.
func executables(dir string) ([]archive.Entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var entries []archive.Entry
	for _, file := range files {
		info, err := file.Info()
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		name := filepath.Join(dir, file.Name())
		entries = append(entries, archive.Entry{
			Name: file.Name(), Kind: archive.Executable, Size: info.Size(),
			Open: func() (io.ReadCloser, error) { return os.Open(name) },
		})
	}
	return entries, nil
}

// bundleImage lays the bundle's tar on its base. The layer is the bundle itself, so its
// programs stand at the image's root.
func (r *run) bundleImage(ctx context.Context, s step, programs []archive.Entry, made *staged) error {
	entrypoint := s.artifact.Entrypoint
	if len(entrypoint) == 0 {
		if len(programs) > 1 {
			return failed(ReasonInvalidModule, `set "entrypoint"`, "bundle has %d programs, and none is named to start", len(programs))
		}
		entrypoint = []string{"/" + programs[0].Name}
	}
	layout, err := r.scratch(s.name, "image")
	if err != nil {
		return err
	}
	if s.base != "" && r.builder.Registry == nil {
		return refused(ReasonUpstream, "start the builder with --store-credential", "a base image needs the mesh's registry")
	}
	base := s.base
	if up, ok := r.staged[s.artifact.Base]; ok {
		base = up.upstream // what the tag meant when this build looked it up
	}
	image, err := r.builder.Registry.BundleImage(ctx, layout, registry.BundleImage{
		Layer: made.blob, Digest: made.built.Digest, Size: made.built.Size, Platform: platform, Base: base, Entrypoint: entrypoint,
	})
	if err != nil {
		return failed(ReasonUpstream, "see that the base exists for "+platform, "make image of the bundle: %w", err)
	}
	made.layout, made.built.Image = layout, image.Digest
	return nil
}
