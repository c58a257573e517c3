package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/mesh-control/mesh/schema"
)

// BundleImage is an image to be made of a bundle: its tar as the one layer on a base. The
// layer stays uncompressed, so that its digest is the bundle's.
type BundleImage struct {
	Layer      string // path of the tar
	Digest     string // of the tar
	Size       int64
	Platform   string // "os/arch"
	Base       string // upstream reference; "" is the empty image
	Entrypoint []string
}

// BundleImage writes the image as an OCI layout into dir, for [Client.PushImageLayout]. The
// same bundle on the same base is the same image wherever it is made.
func (c *Client) BundleImage(ctx context.Context, dir string, b BundleImage) (Image, error) {
	if err := makeLayout(dir); err != nil {
		return Image{}, err
	}
	platform, err := splitPlatform(b.Platform)
	if err != nil {
		return Image{}, err
	}
	base := v1.ConfigFile{OS: platform.OS, Architecture: platform.Architecture}
	var layers []imageLayer
	if b.Base != "" {
		found, err := c.baseImage(ctx, b.Base, platform)
		if err != nil {
			return Image{}, fmt.Errorf("base %s: %w", b.Base, err)
		}
		base = found.config
		if layers, err = found.store(ctx, dir); err != nil {
			return Image{}, fmt.Errorf("base %s: %w", b.Base, err)
		}
	}
	if err := os.Link(b.Layer, blobPath(dir, b.Digest)); err != nil && !os.IsExist(err) {
		return Image{}, err
	}
	layers = append(layers, imageLayer{
		ociDescriptor: ociDescriptor{MediaType: schema.MediaTypeTar, Digest: b.Digest, Size: b.Size}, diffID: b.Digest,
	})
	config := cleanConfig(base.Config)
	config.Entrypoint, config.Cmd = b.Entrypoint, nil
	return finishLayout(dir, base, config, layers)
}

// base is an image of one platform that another is made on.
type base struct {
	source   source
	manifest *v1.Manifest
	config   v1.ConfigFile
	raw      []byte // config as it is
	digest   string // of the image, or of the index it was chosen from
}

// baseImage finds an image and its variant for a platform: carried, outside, or, under
// registry.mesh, in the repository of the mesh's registry that it names.
func (c *Client) baseImage(ctx context.Context, reference string, platform v1.Platform) (*base, error) {
	r, err := ParseReference(reference)
	if err != nil {
		return nil, permanent{err}
	}
	if r.Host == schema.RegistryName {
		from := meshSource{client: c, repository: r.Path}
		root, err := from.document(ctx, r.identifier())
		if err != nil {
			return nil, err
		}
		return c.baseOf(ctx, from, root, platform)
	}
	from, root, err := c.find(ctx, r)
	if err != nil {
		return nil, err
	}
	return c.baseOf(ctx, from, root, platform)
}

func (c *Client) baseOf(ctx context.Context, from source, root document, platform v1.Platform) (*base, error) {
	digest := root.digest()
	if types.MediaType(root.mediaType).IsIndex() {
		index, err := v1.ParseIndexManifest(bytes.NewReader(root.data))
		if err != nil {
			return nil, err
		}
		child := ""
		for _, m := range index.Manifests {
			if m.Platform != nil && m.Platform.OS == platform.OS && m.Platform.Architecture == platform.Architecture {
				child = m.Digest.String()
				break
			}
		}
		if child == "" {
			return nil, fmt.Errorf("it has no platform %s/%s", platform.OS, platform.Architecture)
		}
		if root, err = from.document(ctx, child); err != nil {
			return nil, err
		}
		if root.digest() != child {
			return nil, ErrDigest
		}
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(root.data))
	if err != nil {
		return nil, err
	}
	b := &base{source: from, manifest: manifest, digest: digest}
	err = c.retry(ctx, func() error {
		body, err := from.blob(ctx, manifest.Config.Digest.String(), manifest.Config.Size)
		if err != nil {
			return err
		}
		defer body.Close()
		b.raw, err = io.ReadAll(io.LimitReader(body, maxDocument))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read image config: %w", err)
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(b.raw))
	if err != nil {
		return nil, fmt.Errorf("read image config: %w", err)
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fmt.Errorf("its config names %d layers and its manifest %d", len(config.RootFS.DiffIDs), len(manifest.Layers))
	}
	b.config = *config
	return b, nil
}

// store copies the layers into a layout.
func (b *base) store(ctx context.Context, dir string) ([]imageLayer, error) {
	var layers []imageLayer
	for i, l := range b.manifest.Layers {
		mediaType, err := ociLayerType(l.MediaType)
		if err != nil {
			return nil, err
		}
		body, err := b.source.blob(ctx, l.Digest.String(), l.Size)
		if err != nil {
			return nil, err
		}
		err = writeFile(blobPath(dir, l.Digest.String()), body)
		if err != nil {
			return nil, fmt.Errorf("read layer %s: %w", l.Digest, err)
		}
		layers = append(layers, imageLayer{
			ociDescriptor: ociDescriptor{MediaType: mediaType, Digest: l.Digest.String(), Size: l.Size},
			diffID:        b.config.RootFS.DiffIDs[i].String(),
		})
	}
	return layers, nil
}

func writeFile(name string, body io.ReadCloser) error {
	defer body.Close()
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, body); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// cleanConfig leaves out of a config what an engine put there by itself.
func cleanConfig(config v1.Config) v1.Config {
	config.Hostname, config.Domainname, config.Image, config.ArgsEscaped = "", "", "", false
	config.Labels = maps.Clone(config.Labels) // the caller's stay
	for _, label := range []string{"io.buildah.version", BuilderLabel} {
		delete(config.Labels, label)
	}
	return config
}
