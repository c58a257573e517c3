package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	mediaTypeImage = string(types.OCIManifestSchema1)
	mediaTypeIndex = string(types.OCIImageIndex)
)

// documentTypes is what a client accepts when it asks for a manifest or an index.
var documentTypes = strings.Join([]string{
	mediaTypeImage, mediaTypeIndex, string(types.DockerManifestSchema2), string(types.DockerManifestList),
}, ", ")

// Image is what a repository holds after an image was pushed or mirrored.
type Image struct {
	Digest    string   // of the manifest or index
	Size      int64    // its bytes
	MediaType string   // its own
	Platforms []string // "os/arch", sorted
}

// ContentTag is the tag that keeps a digest from garbage collectors.
func ContentTag(digest string) string { return "m-" + strings.TrimPrefix(digest, "sha256:") }

// document reads a manifest or index and checks it against its digest, the one asked for or,
// for a tag, the one the registry says.
func (c *Client) document(ctx context.Context, repository, reference string) (document, error) {
	response, err := c.do(ctx, request{
		method: http.MethodGet, path: "/v2/" + repository + "/manifests/" + reference,
		header: map[string]string{"Accept": documentTypes}, want: []int{http.StatusOK},
	})
	if err != nil {
		return document{}, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	if err != nil {
		return document{}, err
	}
	if len(data) > maxDocument {
		return document{}, fmt.Errorf("%s@%s: larger than %d bytes", repository, reference, maxDocument)
	}
	found := document{mediaType: response.Header.Get("Content-Type"), data: data}
	want := reference
	if !digestForm.MatchString(reference) {
		want = response.Header.Get("Docker-Content-Digest")
	}
	if found.digest() != want {
		return document{}, fmt.Errorf("%w: wanted %s, got %s", ErrDigest, want, found.digest())
	}
	return found, nil
}

// Resolve succeeds when a repository holds the manifest or index of a digest. [NotFound] tells
// its absence from other failures.
func (c *Client) Resolve(ctx context.Context, repository, digest string) error {
	if err := checkName(repository, digest); err != nil {
		return fmt.Errorf("resolve: %w", err)
	}
	response, err := c.do(ctx, request{
		method: http.MethodHead, path: "/v2/" + repository + "/manifests/" + digest,
		header: map[string]string{"Accept": documentTypes}, want: []int{http.StatusOK},
	})
	if err != nil {
		return fmt.Errorf("resolve %s@%s: %w", repository, digest, err)
	}
	return response.Body.Close()
}

// put pushes a document under a tag and reads it back by digest.
func (c *Client) put(ctx context.Context, repository, tag string, d document) error {
	response, err := c.do(ctx, request{
		method: http.MethodPut, path: "/v2/" + repository + "/manifests/" + tag,
		header: map[string]string{"Content-Type": d.mediaType}, size: int64(len(d.data)),
		body: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(d.data)), nil },
		want: []int{http.StatusCreated},
	})
	if err != nil {
		return fmt.Errorf("push manifest %s:%s: %w", repository, tag, err)
	}
	_ = response.Body.Close()
	back, err := c.document(ctx, repository, d.digest())
	var status *StatusError
	if errors.As(err, &status) && status.Status == http.StatusInternalServerError {
		// Distribution 2.8 keeps the empty file of a write that found the disk full, and takes
		// it for the blob at every later push.
		return fmt.Errorf("read back %s@%s: %w; if that stays so, its storage holds a damaged copy: remove the folder blobs/sha256/%s/%s there and publish again",
			repository, d.digest(), err, d.digest()[7:9], d.digest()[7:])
	}
	if err != nil {
		return fmt.Errorf("read back %s@%s: %w", repository, d.digest(), err)
	}
	if !bytes.Equal(back.data, d.data) {
		return fmt.Errorf("read back %s@%s: %w", repository, d.digest(), ErrDigest)
	}
	return nil
}

// PushImage pushes an image that a library made, and reads it back.
func (c *Client) PushImage(ctx context.Context, repository string, image v1.Image) (Image, error) {
	return c.copyImage(ctx, imageSource{image}, "", target{repository: repository})
}

// PushImageLayout pushes the one image or index of an OCI layout on disk.
func (c *Client) PushImageLayout(ctx context.Context, repository, dir string) (Image, error) {
	return c.pushLayout(ctx, dir, target{repository: repository})
}

func (c *Client) pushLayout(ctx context.Context, dir string, to target) (Image, error) {
	from := layoutSource{dir}
	root, err := from.root()
	if err != nil {
		return Image{}, fmt.Errorf("read layout %s: %w", dir, err)
	}
	return c.copyImage(ctx, from, root, to)
}

// target is where a copy goes.
type target struct {
	repository string
	platforms  []string // those to keep; empty is all
	mountFrom  string   // a repository of the same registry that has the blobs
	tag        string   // beside the content tag
}

// copyImage copies what reference names, children first, so that whatever resolves is whole.
func (c *Client) copyImage(ctx context.Context, from source, reference string, to target) (Image, error) {
	if !repositoryName.MatchString(to.repository) {
		return Image{}, fmt.Errorf("repository %q is not a name", to.repository)
	}
	root, err := from.document(ctx, reference)
	if err != nil {
		return Image{}, err
	}
	if digestForm.MatchString(reference) && root.digest() != reference {
		return Image{}, fmt.Errorf("%w: wanted %s, got %s", ErrDigest, reference, root.digest())
	}
	if len(to.platforms) > 0 && types.MediaType(root.mediaType).IsIndex() {
		if root, err = keepPlatforms(root, to.platforms); err != nil {
			return Image{}, err
		}
	}
	platforms, err := c.copyDocument(ctx, from, root, to)
	if err != nil {
		return Image{}, err
	}
	slices.Sort(platforms)
	platforms = slices.Compact(platforms)
	for _, wanted := range to.platforms {
		if !slices.Contains(platforms, wanted) {
			return Image{}, fmt.Errorf("image has no platform %s, only %s", wanted, strings.Join(platforms, ", "))
		}
	}
	if to.tag != "" {
		if err := c.put(ctx, to.repository, to.tag, root); err != nil {
			return Image{}, err
		}
	}
	return Image{Digest: root.digest(), Size: int64(len(root.data)), MediaType: root.mediaType, Platforms: platforms}, nil
}

func (c *Client) copyDocument(ctx context.Context, from source, d document, to target) ([]string, error) {
	kind := types.MediaType(d.mediaType)
	var platforms []string
	var err error
	switch {
	case kind.IsIndex():
		platforms, err = c.copyChildren(ctx, from, d, to)
	case kind == types.OCIManifestSchema1 || kind == types.DockerManifestSchema2:
		platforms, err = c.copyBlobs(ctx, from, d, to)
	default:
		return nil, fmt.Errorf("%s has media type %q, which is not an image or index of today", d.digest(), d.mediaType)
	}
	if err != nil {
		return nil, err
	}
	return platforms, c.put(ctx, to.repository, ContentTag(d.digest()), d)
}

func (c *Client) copyChildren(ctx context.Context, from source, d document, to target) ([]string, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(d.data))
	if err != nil {
		return nil, fmt.Errorf("read index %s: %w", d.digest(), err)
	}
	var platforms []string
	for _, child := range index.Manifests {
		found, err := from.document(ctx, child.Digest.String())
		if err != nil {
			return nil, fmt.Errorf("read %s of index %s: %w", child.Digest, d.digest(), err)
		}
		if found.digest() != child.Digest.String() {
			return nil, fmt.Errorf("read %s of index %s: %w", child.Digest, d.digest(), ErrDigest)
		}
		below, err := c.copyDocument(ctx, from, found, to)
		if err != nil {
			return nil, err
		}
		switch {
		case child.Platform == nil:
			platforms = append(platforms, below...)
		case child.Platform.OS != "unknown": // attestations hang on the index as "unknown/unknown"
			platforms = append(platforms, child.Platform.OS+"/"+child.Platform.Architecture)
		}
	}
	return platforms, nil
}

func (c *Client) copyBlobs(ctx context.Context, from source, d document, to target) ([]string, error) {
	manifest, err := v1.ParseManifest(bytes.NewReader(d.data))
	if err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", d.digest(), err)
	}
	for _, layer := range append(manifest.Layers, manifest.Config) {
		digest := layer.Digest.String()
		if len(layer.URLs) > 0 || !layer.MediaType.IsDistributable() {
			return nil, fmt.Errorf("layer %s of %s lies outside the registry (%s) and cannot be mirrored", digest, d.digest(), layer.MediaType)
		}
		if to.mountFrom != "" {
			if done, err := c.MountBlob(ctx, to.repository, digest, to.mountFrom); err == nil && done {
				continue
			}
		}
		open := func() (io.ReadCloser, error) { return from.blob(ctx, digest, layer.Size) }
		if err := c.PushBlob(ctx, to.repository, digest, layer.Size, open); err != nil {
			return nil, err
		}
	}
	return c.platformOf(ctx, from, manifest)
}

// platformOf reads the platform an image says it is for. Artifacts that are not images have none.
func (c *Client) platformOf(ctx context.Context, from source, manifest *v1.Manifest) ([]string, error) {
	if !manifest.Config.MediaType.IsConfig() || manifest.Config.Size > maxDocument {
		return nil, nil
	}
	var data []byte
	err := c.retry(ctx, func() error {
		body, err := from.blob(ctx, manifest.Config.Digest.String(), manifest.Config.Size)
		if err != nil {
			return err
		}
		defer body.Close()
		data, err = io.ReadAll(body)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read image config %s: %w", manifest.Config.Digest, err)
	}
	var config struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	}
	if json.Unmarshal(data, &config) != nil || config.OS == "" || config.Architecture == "" {
		return nil, nil //nolint:nilerr // an artifact that is no image has no platform
	}
	return []string{config.OS + "/" + config.Architecture}, nil
}

// keepPlatforms makes the index that has only the wanted platforms. Its digest is its own;
// the one it came from is recorded beside it.
func keepPlatforms(d document, wanted []string) (document, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(d.data))
	if err != nil {
		return document{}, fmt.Errorf("read index %s: %w", d.digest(), err)
	}
	var kept []v1.Descriptor
	var have []string
	for _, child := range index.Manifests {
		if child.Platform == nil {
			continue
		}
		platform := child.Platform.OS + "/" + child.Platform.Architecture
		have = append(have, platform)
		if slices.Contains(wanted, platform) {
			kept = append(kept, child)
		}
	}
	for _, platform := range wanted {
		if !slices.Contains(have, platform) {
			return document{}, fmt.Errorf("image has no platform %s, only %s", platform, strings.Join(have, ", "))
		}
	}
	if len(kept) == len(index.Manifests) {
		return d, nil
	}
	index.Manifests = kept
	data, err := json.Marshal(index)
	if err != nil {
		return document{}, errors.Join(errors.New("write index"), err)
	}
	return document{mediaType: d.mediaType, data: data}, nil
}
