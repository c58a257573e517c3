package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// document is a manifest or an index, as the bytes its digest is of.
type document struct {
	mediaType string
	data      []byte
}

func (d document) digest() string { return digestOf(d.data) }

// source is where an image is read from while it is copied.
type source interface {
	// document reads a manifest or index by tag or digest.
	document(ctx context.Context, reference string) (document, error)
	// blob opens a blob.
	blob(ctx context.Context, digest string, size int64) (io.ReadCloser, error)
}

// maxDocument is the size of manifest that every registry accepts.
const maxDocument = 4 << 20

// meshSource reads from a repository of the mesh's own registry.
type meshSource struct {
	client     *Client
	repository string
}

func (s meshSource) document(ctx context.Context, reference string) (document, error) {
	return s.client.document(ctx, s.repository, reference)
}

func (s meshSource) blob(ctx context.Context, digest string, _ int64) (io.ReadCloser, error) {
	body, _, err := s.client.Blob(ctx, s.repository, digest)
	return body, err
}

// layoutSource reads from an OCI image layout on disk.
type layoutSource struct{ dir string }

// root gives the digest of the one image or index the layout holds.
func (s layoutSource) root() (string, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, "index.json"))
	if err != nil {
		return "", err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(text))
	if err != nil {
		return "", fmt.Errorf("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return "", fmt.Errorf("index.json names %d images and must name one", len(index.Manifests))
	}
	return index.Manifests[0].Digest.String(), nil
}

func (s layoutSource) path(digest string) string {
	return filepath.Join(s.dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

func (s layoutSource) document(_ context.Context, reference string) (document, error) {
	if !digestForm.MatchString(reference) {
		return document{}, permanent{fmt.Errorf("%q is not a digest", reference)}
	}
	data, err := os.ReadFile(s.path(reference))
	if err != nil {
		return document{}, permanent{err}
	}
	var head struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return document{}, permanent{err}
	}
	if head.MediaType == "" { // optional in OCI documents
		head.MediaType = mediaTypeImage
		if head.Manifests != nil {
			head.MediaType = mediaTypeIndex
		}
	}
	return document{mediaType: head.MediaType, data: data}, nil
}

func (s layoutSource) blob(_ context.Context, digest string, size int64) (io.ReadCloser, error) {
	file, err := os.Open(s.path(digest))
	if err != nil {
		return nil, permanent{err}
	}
	return verify(file, digest, size), nil
}

// imageSource reads from an image in memory or on disk that a library made.
type imageSource struct{ image v1.Image }

func (s imageSource) document(context.Context, string) (document, error) {
	data, err := s.image.RawManifest()
	if err != nil {
		return document{}, permanent{err}
	}
	mediaType, err := s.image.MediaType()
	return document{mediaType: string(mediaType), data: data}, err
}

func (s imageSource) blob(_ context.Context, digest string, _ int64) (io.ReadCloser, error) {
	config, err := s.image.RawConfigFile()
	if err != nil {
		return nil, permanent{err}
	}
	if digestOf(config) == digest {
		return io.NopCloser(bytes.NewReader(config)), nil
	}
	hash, err := v1.NewHash(digest)
	if err != nil {
		return nil, permanent{err}
	}
	layer, err := s.image.LayerByDigest(hash)
	if err != nil {
		return nil, permanent{err}
	}
	return layer.Compressed()
}

// outside reaches the registries that are not the mesh's, anonymously: a mesh borrows public
// images, and no credential of the machine it runs on may decide what it gets.
type outside struct {
	transport http.RoundTripper
	insecure  []string
	retry     func(context.Context, func() error) error
}

// outsideSource is one repository there.
type outsideSource struct {
	outside
	repository name.Repository
}

func (o outside) repository(host, path string) (outsideSource, error) {
	var options []name.Option
	if slices.Contains(o.insecure, host) {
		options = append(options, name.Insecure)
	}
	if host == "docker.io" {
		host = name.DefaultRegistry
	}
	repository, err := name.NewRepository(host+"/"+path, options...)
	return outsideSource{outside: o, repository: repository}, err
}

func (s outsideSource) options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(authn.Anonymous), remote.WithTransport(s.transport),
		// Retried here, where Retry-After is heard and the context is the limit.
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}), remote.WithRetryStatusCodes(),
	}
}

func (s outsideSource) document(ctx context.Context, reference string) (document, error) {
	var target name.Reference = s.repository.Tag(reference)
	if digestForm.MatchString(reference) {
		target = s.repository.Digest(reference)
	}
	var found document
	err := s.retry(ctx, func() error {
		descriptor, err := remote.Get(target, s.options(ctx)...)
		if err != nil {
			return outsideError(err)
		}
		found = document{mediaType: string(descriptor.MediaType), data: descriptor.Manifest}
		return nil
	})
	return found, err
}

func (s outsideSource) blob(ctx context.Context, digest string, size int64) (io.ReadCloser, error) {
	layer, err := remote.Layer(s.repository.Digest(digest), s.options(ctx)...)
	if err != nil {
		return nil, outsideError(err)
	}
	body, err := layer.Compressed()
	if err != nil {
		return nil, outsideError(err)
	}
	return verify(body, digest, size), nil
}

// outsideError turns the library's error into one that is retried or not by its status.
func outsideError(err error) error {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return err
	}
	status := &StatusError{Status: answer.StatusCode, Method: "GET", Path: "an outside registry"}
	if answer.Request != nil {
		status.Method, status.Path = answer.Request.Method, answer.Request.URL.Host+answer.Request.URL.Path
	}
	if len(answer.Errors) > 0 {
		status.Message = answer.Errors[0].String()
		status.Message = status.Message[:min(len(status.Message), 500)]
	}
	return status
}
