package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/mesh-control/mesh/schema"
)

// Layer is the blob of an archive or bundle.
type Layer struct {
	Artifact  string // its name in the manifest
	Digest    string
	Size      int64
	MediaType string
	Open      func() (io.ReadCloser, error) // the same bytes each time
}

// ManifestRepository is where a module's manifests and blobs lie.
func ManifestRepository(module string) string { return "modules/" + module }

// ImageRepository is where the images of one artifact of a module lie.
func ImageRepository(module, artifact string) string { return "modules/" + module + "/" + artifact }

// ociManifest is an OCI image manifest (image-spec 1.1) used as an artifact.
type ociManifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        ociDescriptor     `json:"config"`
	Layers        []ociDescriptor   `json:"layers"`
	Subject       *ociDescriptor    `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type ociDescriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	ArtifactType string            `json:"artifactType,omitempty"` // in an index
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// The layer of an artifact that has none (image-spec, "Guidance for an Empty Descriptor").
const (
	emptyType = "application/vnd.oci.empty.v1+json"
	emptyBody = "{}"
)

var emptyDescriptor = ociDescriptor{MediaType: emptyType, Digest: digestOf([]byte(emptyBody)), Size: int64(len(emptyBody))}

// PublishManifest publishes a built module and gives its digest. Blobs go first; then every
// image the manifest names must resolve; the manifest goes last and is read back. The digest
// is a function of manifest and layers alone.
//
// Attach, which may be nil, is called just before the manifest is pushed, and its error is the
// publication's: a manifest that resolves has what was attached to it.
func (c *Client) PublishManifest(ctx context.Context, manifest schema.Manifest, layers []Layer, attach func(context.Context, Subject) error) (string, error) {
	digest, err := c.publish(ctx, manifest, layers, attach)
	if err != nil {
		return "", fmt.Errorf("publish module %s: %w", manifest.Module, err)
	}
	return digest, nil
}

func (c *Client) publish(ctx context.Context, manifest schema.Manifest, layers []Layer, attach func(context.Context, Subject) error) (string, error) {
	repository := ManifestRepository(manifest.Module)
	if !repositoryName.MatchString(repository) || manifest.Module == "" {
		return "", permanent{fmt.Errorf("%q is not a module name", manifest.Module)}
	}
	config, err := schema.Canonical(manifest)
	if err != nil {
		return "", err
	}
	if err := checkLayers(manifest, layers); err != nil {
		return "", err
	}
	for _, layer := range layers {
		if err := c.PushBlob(ctx, repository, layer.Digest, layer.Size, layer.Open); err != nil {
			return "", fmt.Errorf("artifact %s: %w", layer.Artifact, err)
		}
	}
	if err := c.resolveImages(ctx, manifest); err != nil {
		return "", err
	}
	d, err := artifact(config, layers)
	if err != nil {
		return "", err
	}
	for _, text := range [][]byte{config, []byte(emptyBody)} {
		if err := c.pushText(ctx, repository, text); err != nil {
			return "", err
		}
	}
	if attach != nil {
		if err := attach(ctx, Subject{Repository: repository, Digest: d.digest(), Size: int64(len(d.data))}); err != nil {
			return "", err
		}
	}
	if err := c.put(ctx, repository, ContentTag(d.digest()), d); err != nil {
		return "", err
	}
	return d.digest(), nil
}

// checkLayers holds the manifest against the blobs that came with it: none may be missing,
// none may be more.
func checkLayers(manifest schema.Manifest, layers []Layer) error {
	want := map[string]string{}
	for name, built := range manifest.Artifacts {
		if built.Kind == schema.KindArchive || built.Kind == schema.KindBundle {
			want[name] = built.Digest
		}
	}
	for _, layer := range layers {
		if want[layer.Artifact] != layer.Digest {
			return permanent{fmt.Errorf("layer %q has digest %s and the manifest says %q", layer.Artifact, layer.Digest, want[layer.Artifact])}
		}
		delete(want, layer.Artifact)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		return permanent{fmt.Errorf("artifact %q has no layer", name)}
	}
	return nil
}

func (c *Client) resolveImages(ctx context.Context, manifest schema.Manifest) error {
	for _, name := range slices.Sorted(maps.Keys(manifest.Artifacts)) {
		built := manifest.Artifacts[name]
		image := built.Image
		if built.Kind == schema.KindImage || built.Kind == schema.KindUpstream {
			image = built.Digest
		}
		if image == "" {
			continue
		}
		if err := c.Resolve(ctx, ImageRepository(manifest.Module, name), image); err != nil {
			return fmt.Errorf("artifact %s: %w", name, err)
		}
	}
	return nil
}

// artifact makes the OCI manifest that a module's manifest is the config of.
func artifact(config []byte, layers []Layer) (document, error) {
	m := ociManifest{
		SchemaVersion: 2, MediaType: mediaTypeImage, ArtifactType: schema.MediaTypeManifest,
		Config: ociDescriptor{MediaType: schema.MediaTypeConfig, Digest: digestOf(config), Size: int64(len(config))},
	}
	sorted := slices.SortedFunc(slices.Values(layers), func(a, b Layer) int { return bytes.Compare([]byte(a.Artifact), []byte(b.Artifact)) })
	for _, layer := range sorted {
		m.Layers = append(m.Layers, ociDescriptor{
			MediaType: layer.MediaType, Digest: layer.Digest, Size: layer.Size,
			Annotations: map[string]string{fileTitle: layer.Artifact},
		})
	}
	if len(m.Layers) == 0 {
		m.Layers = []ociDescriptor{emptyDescriptor}
	}
	data, err := schema.Canonical(m)
	return document{mediaType: mediaTypeImage, data: data}, err
}

// Manifest reads a published manifest by its digest. Every byte is checked on the way.
func (c *Client) Manifest(ctx context.Context, module, digest string) (schema.Manifest, error) {
	manifest, err := c.readManifest(ctx, module, digest)
	if err != nil {
		return schema.Manifest{}, fmt.Errorf("read manifest %s@%s: %w", module, digest, err)
	}
	return *manifest, nil
}

func (c *Client) readManifest(ctx context.Context, module, digest string) (*schema.Manifest, error) {
	repository := ManifestRepository(module)
	if err := checkName(repository, digest); err != nil {
		return nil, err
	}
	d, err := c.document(ctx, repository, digest)
	if err != nil {
		return nil, err
	}
	var m ociManifest
	if err := json.Unmarshal(d.data, &m); err != nil {
		return nil, err
	}
	if m.ArtifactType != schema.MediaTypeManifest || m.Config.MediaType != schema.MediaTypeConfig || m.Config.Size > maxDocument {
		return nil, fmt.Errorf("it is a %q with a config of type %q, not a module's manifest", m.ArtifactType, m.Config.MediaType)
	}
	body, _, err := c.Blob(ctx, repository, m.Config.Digest)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	config, err := io.ReadAll(io.LimitReader(body, maxDocument+1))
	if err != nil {
		return nil, err
	}
	manifest, err := schema.ParseManifest(repository+"@"+digest, config)
	if err != nil {
		return nil, err
	}
	if manifest.Module != module {
		return nil, fmt.Errorf("it is that of module %q", manifest.Module)
	}
	return manifest, nil
}
