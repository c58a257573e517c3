package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// compose derives the manifest from module.json and what its artifacts became. It is pure.
func compose(m *schema.Module, source schema.Source, recipe string, built map[string]schema.Built) (*schema.Manifest, error) {
	manifest := &schema.Manifest{
		Schema: schema.Version, Module: m.Name, Description: m.Description, Provides: m.Provides, Requires: m.Requires,
		Claims: m.Claims, Capabilities: m.Capabilities, Settings: m.Settings, Secrets: m.Secrets, OwnSecrets: m.OwnSecrets,
		Source: source, Artifacts: built, Recipe: recipe,
	}
	for _, resource := range m.Resources {
		if err := replace(m.Name, &resource, built); err != nil {
			return nil, err
		}
		manifest.Resources = append(manifest.Resources, resource)
	}
	return manifest, nil
}

// replace puts what was built where the resource named an artifact.
func replace(module string, resource *schema.Resource, built map[string]schema.Built) error {
	name := resource.Artifact
	if name == "" {
		return nil
	}
	b, ok := built[name]
	if !ok {
		return failed(ReasonInvalidModule, "", "resource %s: no artifact %q", resource.ID, name)
	}
	resource.Artifact = ""
	switch {
	case resource.Type == schema.TypeContainer && b.Kind == schema.KindBundle:
		resource.Image = imageReference(module, name, b.Image)
	case resource.Type == schema.TypeContainer && (b.Kind == schema.KindImage || b.Kind == schema.KindUpstream):
		resource.Image = imageReference(module, name, b.Digest)
	case resource.Type == schema.TypeArchive && (b.Kind == schema.KindArchive || b.Kind == schema.KindBundle):
		resource.Source = "https://" + schema.RegistryName + "/v2/" + registry.ManifestRepository(module) + "/blobs/" + b.Digest
		resource.Digest = b.Digest
	default:
		return failed(ReasonInvalidModule, "an archive resource takes an archive or a bundle, a container an image, upstream or bundle",
			"resource %s of type %s cannot carry the %s %s", resource.ID, resource.Type, b.Kind, name)
	}
	return nil
}

func imageReference(module, artifact, digest string) string {
	return schema.RegistryName + "/" + registry.ImageRepository(module, artifact) + "@" + digest
}

// verify takes every digest again from what lies on disk, composes the manifest and reads it
// the way everyone will.
func (r *run) verify(ctx context.Context) error {
	built := map[string]schema.Built{}
	for _, name := range slices.Sorted(maps.Keys(r.staged)) {
		s := r.staged[name]
		if s.blob != "" {
			if err := checkBlob(ctx, s.blob, s.built.Digest); err != nil {
				return fmt.Errorf("verify artifact %s: %w", name, err)
			}
		}
		built[name] = s.built
	}
	manifest, err := compose(r.module, schema.Source{
		Repository: r.result.Repository, Path: r.path, Ref: r.clone.Ref, Commit: r.clone.Commit, Tree: r.result.Tree,
	}, r.recipe, built)
	if err != nil {
		return err
	}
	data, err := schema.Canonical(manifest)
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	if r.result.Manifest, err = schema.ParseManifest("manifest of "+r.module.Name, data); err != nil {
		return failed(ReasonInternal, "", "manifest is not one: %w", err)
	}
	return nil
}

func checkBlob(ctx context.Context, name, digest string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &measured{ctx: ctx, w: io.Discard, hash: sha256.New(), left: 1 << 62}
	if _, err := io.Copy(w, f); err != nil {
		return err
	}
	if got := "sha256:" + hex.EncodeToString(w.hash.Sum(nil)); got != digest {
		return fmt.Errorf("has digest %s, made with %s", got, digest)
	}
	return nil
}

// publish pushes images, then blobs and the manifest, which is the commit point.
func (r *run) publish(ctx context.Context) error {
	if r.unchanged != nil { // built only to be compared
		r.stay()
		return nil
	}
	if r.builder.Registry == nil {
		r.say("", "not published: the builder was started without a registry")
		r.result.Outcome = schema.OutcomeBuilt
		return nil
	}
	var layers []registry.Layer
	for _, name := range slices.Sorted(maps.Keys(r.staged)) {
		s := r.staged[name]
		if err := r.publishImage(ctx, name, s); err != nil {
			return failed(ReasonPublish, "build again when the registry answers", "publish artifact %s: %w", name, err)
		}
		if s.blob != "" {
			layers = append(layers, registry.Layer{
				Artifact: name, Digest: s.built.Digest, Size: s.built.Size, MediaType: s.built.MediaType,
				Open: func() (io.ReadCloser, error) { return os.Open(s.blob) },
			})
		}
	}
	digest, err := r.builder.Registry.PublishManifest(ctx, *r.result.Manifest, layers, r.attest)
	if err != nil {
		return failed(ReasonPublish, "build again when the registry answers", "%w", err)
	}
	r.result.Digest, r.result.Outcome = digest, schema.OutcomeBuilt
	r.say("", "published manifest %s", digest)
	return nil
}

func (r *run) publishImage(ctx context.Context, name string, s *staged) error {
	repository := registry.ImageRepository(r.module.Name, name)
	want := s.built.Digest
	var pushed registry.Image
	var err error
	switch {
	case s.upstream != "":
		var mirrored registry.Mirrored
		mirrored, err = r.builder.Registry.Mirror(ctx, s.upstream, r.module.Artifacts[name].Platforms, repository)
		pushed = mirrored.Image
	case s.layout != "":
		if s.built.Image != "" {
			want = s.built.Image
		}
		pushed, err = r.builder.Registry.PushImageLayout(ctx, repository, s.layout)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if pushed.Digest != want {
		return fmt.Errorf("registry holds %s, %s was built", pushed.Digest, want)
	}
	r.say(name, "pushed %s@%s", repository, pushed.Digest)
	return nil
}
