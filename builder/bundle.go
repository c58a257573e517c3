package builder

import (
	"context"
	"errors"

	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// bundle compiles and packs; a container's bundle becomes an image as well.
func (r *run) bundle(ctx context.Context, s step) (*staged, error) {
	source, err := r.clone.Entries(s.path)
	if err != nil {
		return nil, err
	}
	scratch, err := r.scratch(s.name, "compile")
	if err != nil {
		return nil, err
	}
	product, err := r.builder.Toolchains[s.language].Compile(ctx, toolchain.Compilation{
		Source: source, Package: s.artifact.Package, Scratch: scratch, Limit: r.maxArtifact(),
		Log: func(line string) { r.say(s.name, "%s", line) },
	})
	if err != nil {
		return nil, compileFailure(err)
	}
	made, err := r.pack(ctx, s, product.Entries)
	if err != nil {
		return nil, err
	}
	made.built.Platforms = []string{platform}
	made.built.Language, made.built.Toolchain = s.language, r.versions[s.language]
	if product.Image != "" {
		made.used = append(made.used, provenance.Image(product.Image, product.ImageDigest))
	}
	if made.sbom, err = r.sbom(s, source, product, made.built); err != nil {
		return nil, err
	}
	if s.asImage {
		err = r.bundleImage(ctx, s, product, made)
	}
	return made, err
}

// compileFailure gives the reason of what a toolchain says, or of what packing its source says.
func compileFailure(err error) error {
	var known *toolchain.Error
	if errors.As(err, &known) {
		return err
	}
	if packed := packFailure(err); packed != err { //nolint:errorlint // whether it was given a reason
		return packed
	}
	return failed(ReasonCompile, "the log has what the compiler said", "compile: %w", err)
}

// bundleImage lays the bundle's tar on its base. The layer is the bundle itself, so its
// files stand at the image's root.
func (r *run) bundleImage(ctx context.Context, s step, product toolchain.Product, made *staged) error {
	entrypoint := s.artifact.Entrypoint
	if len(entrypoint) == 0 {
		entrypoint = product.Entrypoint
	}
	if len(entrypoint) == 0 {
		return failed(ReasonInvalidModule, `set "entrypoint"`, "it is not clear what a container of the bundle starts: %s", product.Unclear)
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

// languagesOf decides the language of every bundle of the module. It is part of reading,
// because the recipe takes in the versions of the toolchains that are used, and no others.
func (r *run) languagesOf(m *schema.Module) (map[string]string, error) {
	found := map[string]string{}
	for name, a := range m.Artifacts {
		if a.Kind != schema.KindBundle {
			continue
		}
		language, err := r.language(name, a)
		if err != nil {
			return nil, err
		}
		if r.builder.Toolchains[language] == nil {
			return nil, failed(ReasonNoToolchain, "start a builder that has it", "this builder has no toolchain for %s", language)
		}
		found[name] = language
	}
	return found, nil
}
