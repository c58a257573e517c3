package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// LayoutDifference says in words where the images of two layouts made by [Normalise] or
// [Client.BundleImage] first differ: which layer, from 1, and where in it, as compare says of
// two layers' tars; or what of the config. It is "" where they are the same.
func LayoutDifference(first, second string, compare func(first, second io.Reader) (string, error)) (string, error) {
	a, err := readLayout(first)
	if err != nil {
		return "", err
	}
	b, err := readLayout(second)
	if err != nil {
		return "", err
	}
	for i := range min(len(a.Layers), len(b.Layers)) {
		one, other := a.Layers[i].Digest.String(), b.Layers[i].Digest.String()
		if one == other {
			continue
		}
		what, err := layerDifference(blobPath(first, one), blobPath(second, other), compare)
		if err != nil {
			return "", fmt.Errorf("compare layer %d: %w", i+1, err)
		}
		return fmt.Sprintf("layer %d: %s", i+1, what), nil
	}
	if len(a.Layers) != len(b.Layers) {
		return fmt.Sprintf("the first has %d layers, the second %d", len(a.Layers), len(b.Layers)), nil
	}
	return configDifference(blobPath(first, a.Config.Digest.String()), blobPath(second, b.Config.Digest.String()))
}

// readLayout reads the manifest of a layout's one image.
func readLayout(dir string) (*v1.Manifest, error) {
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return nil, err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if len(index.Manifests) != 1 {
		return nil, fmt.Errorf("layout %s has %d images", dir, len(index.Manifests))
	}
	if data, err = os.ReadFile(blobPath(dir, index.Manifests[0].Digest.String())); err != nil {
		return nil, err
	}
	return v1.ParseManifest(bytes.NewReader(data))
}

func layerDifference(first, second string, compare func(first, second io.Reader) (string, error)) (string, error) {
	a, err := os.Open(first)
	if err != nil {
		return "", err
	}
	defer a.Close()
	b, err := os.Open(second)
	if err != nil {
		return "", err
	}
	defer b.Close()
	what, err := compare(a, b)
	if what == "" && err == nil {
		what = "holds the same files, written differently"
	}
	return what, err
}

func configDifference(first, second string) (string, error) {
	var fields [2]map[string]json.RawMessage
	for i, name := range []string{first, second} {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		var document map[string]json.RawMessage
		if err := json.Unmarshal(data, &document); err != nil {
			return "", err
		}
		if err := json.Unmarshal(document["config"], &fields[i]); err != nil {
			return "", err
		}
		delete(document, "config")
		for key, value := range document {
			fields[i][key] = value
		}
	}
	for _, pair := range [][2]map[string]json.RawMessage{{fields[0], fields[1]}, {fields[1], fields[0]}} {
		for _, key := range slices.Sorted(maps.Keys(pair[0])) {
			if !bytes.Equal(pair[0][key], pair[1][key]) {
				return fmt.Sprintf("config: %s is %s and %s", key, fields[0][key], fields[1][key]), nil
			}
		}
	}
	return "", nil
}
