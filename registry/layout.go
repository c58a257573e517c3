package registry

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/mesh-control/mesh/schema"
)

// imageLayer is a layer that lies in a layout under its digest.
type imageLayer struct {
	ociDescriptor
	diffID string // digest of the uncompressed tar
}

// imageConfig is an image's config without what differs from one making of it to the next:
// no time, no history, no author.
type imageConfig struct {
	Created      string    `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Variant      string    `json:"variant,omitempty"`
	Config       v1.Config `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type imageManifest struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Config        ociDescriptor   `json:"config"`
	Layers        []ociDescriptor `json:"layers"`
}

// epoch stands where a format demands a time.
const epoch = "1970-01-01T00:00:00Z"

func blobPath(dir, digest string) string { return layoutSource{dir}.path(digest) }

func makeLayout(dir string) error {
	return os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755)
}

// finishLayout writes config, manifest and index of an image whose layers lie in the layout.
func finishLayout(dir string, base v1.ConfigFile, config v1.Config, layers []imageLayer) (Image, error) {
	c := imageConfig{
		Created: epoch, Architecture: base.Architecture, OS: base.OS, Variant: base.Variant, Config: config,
		RootFS: rootFS{Type: "layers", DiffIDs: []string{}},
	}
	m := imageManifest{SchemaVersion: 2, MediaType: mediaTypeImage, Layers: []ociDescriptor{}}
	for _, layer := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, layer.diffID)
		m.Layers = append(m.Layers, layer.ociDescriptor)
	}
	var err error
	if m.Config, err = writeBlob(dir, string(types.OCIConfigJSON), c); err != nil {
		return Image{}, err
	}
	root, err := writeBlob(dir, mediaTypeImage, m)
	if err != nil {
		return Image{}, err
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": mediaTypeIndex, "manifests": []ociDescriptor{root}})
	if err != nil {
		return Image{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644); err != nil {
		return Image{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return Image{}, err
	}
	return Image{
		Digest: root.Digest, Size: root.Size, MediaType: mediaTypeImage,
		Platforms: []string{base.OS + "/" + base.Architecture},
	}, nil
}

// writeBlob writes a document in its canonical encoding.
func writeBlob(dir, mediaType string, document any) (ociDescriptor, error) {
	data, err := schema.Canonical(document)
	if err != nil {
		return ociDescriptor{}, err
	}
	d := ociDescriptor{MediaType: mediaType, Digest: digestOf(data), Size: int64(len(data))}
	return d, os.WriteFile(blobPath(dir, d.Digest), data, 0o644)
}

// ociLayerType gives the media type a layer has in an OCI manifest.
func ociLayerType(t types.MediaType) (string, error) {
	switch t {
	case types.OCILayer, types.OCIUncompressedLayer, types.OCILayerZStd:
		return string(t), nil
	case types.DockerLayer:
		return string(types.OCILayer), nil
	case types.DockerUncompressedLayer:
		return schema.MediaTypeTar, nil
	}
	return "", fmt.Errorf("layer of media type %q cannot be built on", t)
}

// splitPlatform splits "os/arch".
func splitPlatform(platform string) (v1.Platform, error) {
	os, arch, ok := strings.Cut(platform, "/")
	if !ok || os == "" || arch == "" {
		return v1.Platform{}, fmt.Errorf("platform %q is not os/arch", platform)
	}
	return v1.Platform{OS: os, Architecture: arch}, nil
}
