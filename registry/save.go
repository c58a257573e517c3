package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Saved is an image that was written for a container engine.
type Saved struct {
	Digest  string   // of the image or index that the reference meant
	DiffIDs []string // digests of the uncompressed layers
}

// SaveImage writes an image, carried or outside, as a tar that `docker load` reads, named tag.
// Layers pass through files in dir.
func (c *Client) SaveImage(ctx context.Context, reference, platform, tag, dir string, w io.Writer) (Saved, error) {
	p, err := splitPlatform(platform)
	if err != nil {
		return Saved{}, err
	}
	image, err := c.baseImage(ctx, reference, p)
	if err != nil {
		return Saved{}, fmt.Errorf("save %s: %w", reference, err)
	}
	diffIDs, err := image.save(ctx, tag, dir, w)
	if err != nil {
		return Saved{}, fmt.Errorf("save %s: %w", reference, err)
	}
	return Saved{Digest: image.digest, DiffIDs: diffIDs}, nil
}

func (b *base) save(ctx context.Context, tag, dir string, w io.Writer) ([]string, error) {
	tw := tar.NewWriter(w)
	put := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	}
	var names, diffIDs []string
	for i, l := range b.manifest.Layers {
		// A layer is complete and checked before the engine sees any of it.
		name := fmt.Sprintf("layer-%d.tar", i)
		body, err := b.source.blob(ctx, l.Digest.String(), l.Size)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, name)
		if err := writeFile(file, body); err != nil {
			return nil, fmt.Errorf("read layer %s: %w", l.Digest, err)
		}
		if err := putFile(file, name, l.Size, put); err != nil {
			return nil, err
		}
		names = append(names, name)
		diffIDs = append(diffIDs, b.config.RootFS.DiffIDs[i].String())
	}
	if err := put("config.json", int64(len(b.raw)), bytes.NewReader(b.raw)); err != nil {
		return nil, err
	}
	index, err := json.Marshal([]savedImage{{Config: "config.json", RepoTags: []string{tag}, Layers: names}})
	if err != nil {
		return nil, err
	}
	if err := put("manifest.json", int64(len(index)), bytes.NewReader(index)); err != nil {
		return nil, err
	}
	return diffIDs, tw.Close()
}

func putFile(file, name string, size int64, put func(string, int64, io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	defer f.Close()
	return put(name, size, f)
}

// Inspect says what [Client.Mirror] would leave in the mesh's registry, and copies nothing.
func (c *Client) Inspect(ctx context.Context, reference string, platforms []string) (Mirrored, error) {
	r, err := ParseReference(reference)
	if err != nil {
		return Mirrored{}, permanent{err}
	}
	from, root, err := c.find(ctx, r)
	if err != nil {
		return Mirrored{}, fmt.Errorf("resolve %s: %w", reference, err)
	}
	_, carried := from.(meshSource)
	found := Mirrored{Upstream: root.digest(), Carried: carried}
	if types.MediaType(root.mediaType).IsIndex() && len(platforms) > 0 {
		if root, err = keepPlatforms(root, platforms); err != nil {
			return Mirrored{}, fmt.Errorf("resolve %s: %w", reference, err)
		}
	}
	found.Image = Image{Digest: root.digest(), Size: int64(len(root.data)), MediaType: root.mediaType}
	if found.Platforms, err = c.platforms(ctx, from, root); err != nil {
		return Mirrored{}, fmt.Errorf("resolve %s: %w", reference, err)
	}
	return found, nil
}

// platforms lists those of an image or index, sorted.
func (c *Client) platforms(ctx context.Context, from source, d document) ([]string, error) {
	if !types.MediaType(d.mediaType).IsIndex() {
		manifest, err := v1.ParseManifest(bytes.NewReader(d.data))
		if err != nil {
			return nil, err
		}
		return c.platformOf(ctx, from, manifest)
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(d.data))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, child := range index.Manifests {
		switch {
		case child.Platform == nil:
			below, err := from.document(ctx, child.Digest.String())
			if err != nil {
				return nil, err
			}
			found, err := c.platforms(ctx, from, below)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		case child.Platform.OS != "unknown":
			all = append(all, child.Platform.OS+"/"+child.Platform.Architecture)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
