package registry_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// publication is one way in which something comes into a registry, with the manifest that
// names it last.
type publication struct {
	built   built
	artwork func(context.Context, *registry.Client) error // what goes before the manifest
	outside http.RoundTripper                             // where it is mirrored from
	signed  bool                                          // with two attachments
}

// attachments stand for what a builder says of a module.
var attachments = []registry.Attachment{
	{ArtifactType: "application/vnd.example.list+json", Files: []registry.AttachedFile{{Name: "site", MediaType: "application/json", Data: []byte(`["a"]`)}}},
	{
		ArtifactType: "application/vnd.example.word+json", Annotations: map[string]string{"of": "one"},
		Files: []registry.AttachedFile{{Name: "word", MediaType: "application/json", Data: []byte(`"b"`)}},
	},
}

// attach attaches them with a client.
func attach(client *registry.Client) func(context.Context, registry.Subject) error {
	return func(ctx context.Context, to registry.Subject) error {
		for _, a := range attachments {
			if _, err := client.Attach(ctx, to, a); err != nil {
				return err
			}
		}
		return nil
	}
}

func (p publication) run(ctx context.Context, client *registry.Client) (string, error) {
	if p.artwork != nil {
		if err := p.artwork(ctx, client); err != nil {
			return "", err
		}
	}
	if !p.signed {
		return client.PublishManifest(ctx, p.built.manifest, p.built.layers, nil)
	}
	return client.PublishManifest(ctx, p.built.manifest, p.built.layers, attach(client))
}

// only leaves one artifact in the manifest.
func (b built) only(name string) built {
	b.manifest.Artifacts = map[string]schema.Built{name: b.manifest.Artifacts[name]}
	b.layers = slices.DeleteFunc(slices.Clone(b.layers), func(l registry.Layer) bool { return l.Artifact != name })
	return b
}

// publications are all kinds of artifact, each published in its way.
var publications = map[string]func(t *testing.T) publication{
	"archive": func(t *testing.T) publication { return publication{built: newBuilt(t).only("site")} },
	"signed":  func(t *testing.T) publication { return publication{built: newBuilt(t).only("site"), signed: true} },
	"bundle":  bundlePublication,
	"image": func(t *testing.T) publication {
		b := newBuilt(t)
		dir := writeLayout(t, func(p layout.Path) error { return p.AppendImage(b.image) })
		return publication{built: b.only("server"), artwork: func(ctx context.Context, client *registry.Client) error {
			_, err := client.PushImageLayout(ctx, "modules/web/server", dir)
			return err
		}}
	},
	"mirror": func(t *testing.T) publication {
		outside := newWorld(t)
		return mirrorPublication(t, outside, outside.Address)
	},
}

func bundlePublication(t *testing.T) publication {
	b := newBuilt(t).only("program")
	dir, blob := t.TempDir(), filepath.Join(t.TempDir(), "program.tar")
	if err := os.WriteFile(blob, []byte("the program's tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	artifact := b.manifest.Artifacts["program"]
	image := must(must(registry.NewClient(registry.Config{URL: "https://registry.mesh", Fingerprint: "none"})).BundleImage(t.Context(), dir, registry.BundleImage{
		Layer: blob, Digest: artifact.Digest, Size: artifact.Size, Platform: "linux/amd64", Entrypoint: []string{"/program"},
	}))
	artifact.Image = image.Digest
	b.manifest.Artifacts["program"] = artifact
	return publication{built: b, artwork: func(ctx context.Context, client *registry.Client) error {
		_, err := client.PushImageLayout(ctx, "modules/web/program", dir)
		return err
	}}
}

// mirrorPublication borrows an index, of a platform and an attestation, from outside, which
// answers at address.
func mirrorPublication(t *testing.T, outside *world, address string) publication {
	index := indexOf("linux/amd64")
	outside.pushIndex(t, "library/postgres", "16", index)
	b := newBuilt(t).only("server")
	b.manifest.Artifacts["server"] = schema.Built{
		Kind: schema.KindUpstream, Digest: must(index.Digest()).String(), Size: must(index.Size()), MediaType: string(must(index.MediaType())),
		Platforms: []string{"linux/amd64"},
		Upstream:  &schema.BuiltUpstream{Reference: address + "/library/postgres:16", Digest: must(index.Digest()).String()},
	}
	return publication{built: b, outside: outside, artwork: func(ctx context.Context, client *registry.Client) error {
		_, err := client.Mirror(ctx, address+"/library/postgres:16", nil, "modules/web/server")
		return err
	}}
}
