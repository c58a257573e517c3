package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/mesh-control/mesh/schema"
)

// Subject is what something is attached to: a manifest that is published, or is about to be.
type Subject struct {
	Repository string
	Digest     string
	Size       int64 // of the document
}

// Attachment is what says something of a [Subject].
type Attachment struct {
	ArtifactType string
	Annotations  map[string]string
	Files        []AttachedFile
}

// AttachedFile is a part of an [Attachment], at most [MaxAttachedFile] bytes.
type AttachedFile struct {
	Name      string // unique in the attachment
	MediaType string
	Data      []byte
}

// MaxAttachedFile bounds what is read of an attachment.
const MaxAttachedFile = 64 << 20

// Referrer is an attachment as it is listed with its subject.
type Referrer struct {
	Digest       string
	ArtifactType string
	Annotations  map[string]string
}

// ErrNotAttached says that a manifest is attached to nothing.
var ErrNotAttached = errors.New("it is attached to nothing")

// fileTitle is the annotation that names a layer.
const fileTitle = "org.opencontainers.image.title"

// referrersAttempts is how often the list of a subject is written before another writer wins.
const referrersAttempts = 5

// Attach pushes an attachment, lists it with its subject and gives its digest, which is a
// function of attachment and subject alone. The subject need not be there yet. Doing it again
// changes nothing.
func (c *Client) Attach(ctx context.Context, to Subject, a Attachment) (string, error) {
	digest, err := c.attach(ctx, to, a)
	if err != nil {
		return "", fmt.Errorf("attach %s to %s@%s: %w", a.ArtifactType, to.Repository, to.Digest, err)
	}
	return digest, nil
}

func (c *Client) attach(ctx context.Context, to Subject, a Attachment) (string, error) {
	if err := checkName(to.Repository, to.Digest); err != nil {
		return "", err
	}
	m := ociManifest{
		SchemaVersion: 2, MediaType: mediaTypeImage, ArtifactType: a.ArtifactType, Annotations: a.Annotations, Config: emptyDescriptor,
		Subject: &ociDescriptor{MediaType: mediaTypeImage, Digest: to.Digest, Size: to.Size},
	}
	if err := c.pushText(ctx, to.Repository, []byte(emptyBody)); err != nil {
		return "", err
	}
	for _, file := range a.Files {
		if err := c.pushText(ctx, to.Repository, file.Data); err != nil {
			return "", err
		}
		m.Layers = append(m.Layers, ociDescriptor{
			MediaType: file.MediaType, Digest: digestOf(file.Data), Size: int64(len(file.Data)), Annotations: map[string]string{fileTitle: file.Name},
		})
	}
	data, err := schema.Canonical(m)
	if err != nil {
		return "", err
	}
	d := document{mediaType: mediaTypeImage, data: data}
	if err := c.put(ctx, to.Repository, ContentTag(d.digest()), d); err != nil {
		return "", err
	}
	return d.digest(), c.list(ctx, to, ociDescriptor{
		MediaType: mediaTypeImage, Digest: d.digest(), Size: int64(len(data)), ArtifactType: a.ArtifactType, Annotations: a.Annotations,
	})
}

// list adds a referrer to the list of its subject. Registries have no compare-and-swap, so it
// looks again whether another writer took the entry away. One that writes still later may:
// whoever recorded the referrer's digest finds it all the same.
func (c *Client) list(ctx context.Context, to Subject, entry ociDescriptor) error {
	for range referrersAttempts {
		index, err := c.referrers(ctx, to.Repository, to.Digest)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(index.Manifests, func(d ociDescriptor) bool { return d.Digest == entry.Digest }) {
			return nil
		}
		index.Manifests = append(index.Manifests, entry)
		data, err := schema.Canonical(index)
		if err != nil {
			return err
		}
		if err := c.put(ctx, to.Repository, ReferrersTag(to.Digest), document{mediaType: mediaTypeIndex, data: data}); err != nil {
			return err
		}
	}
	return errors.New("its list of referrers is written by others all the time")
}

// ociIndex is an OCI image index (image-spec 1.1).
type ociIndex struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Manifests     []ociDescriptor `json:"manifests"`
}

// referrers reads a subject's list; of one that has none it is empty.
func (c *Client) referrers(ctx context.Context, repository, digest string) (ociIndex, error) {
	index := ociIndex{SchemaVersion: 2, MediaType: mediaTypeIndex, Manifests: []ociDescriptor{}}
	d, err := c.document(ctx, repository, ReferrersTag(digest))
	if NotFound(err) {
		return index, nil
	}
	if err != nil {
		return index, err
	}
	if d.mediaType != mediaTypeIndex {
		return index, fmt.Errorf("tag %s is a %s, not an index", ReferrersTag(digest), d.mediaType)
	}
	return index, json.Unmarshal(d.data, &index)
}

// Referrers lists what is attached to a digest.
func (c *Client) Referrers(ctx context.Context, repository, digest string) ([]Referrer, error) {
	if err := checkName(repository, digest); err != nil {
		return nil, fmt.Errorf("list referrers: %w", err)
	}
	index, err := c.referrers(ctx, repository, digest)
	if err != nil {
		return nil, fmt.Errorf("list referrers of %s@%s: %w", repository, digest, err)
	}
	found := make([]Referrer, 0, len(index.Manifests))
	for _, d := range index.Manifests {
		found = append(found, Referrer{Digest: d.Digest, ArtifactType: d.ArtifactType, Annotations: d.Annotations})
	}
	return found, nil
}

// Attachment reads an attachment by its own digest, and gives the digest of its subject. Every
// byte is checked on the way.
func (c *Client) Attachment(ctx context.Context, repository, digest string) (a Attachment, subject string, err error) {
	a, subject, err = c.readAttachment(ctx, repository, digest)
	if err != nil {
		return Attachment{}, "", fmt.Errorf("read attachment %s@%s: %w", repository, digest, err)
	}
	return a, subject, nil
}

func (c *Client) readAttachment(ctx context.Context, repository, digest string) (Attachment, string, error) {
	if err := checkName(repository, digest); err != nil {
		return Attachment{}, "", err
	}
	d, err := c.document(ctx, repository, digest)
	if err != nil {
		return Attachment{}, "", err
	}
	var m ociManifest
	if err := json.Unmarshal(d.data, &m); err != nil {
		return Attachment{}, "", err
	}
	if m.Subject == nil {
		return Attachment{}, "", ErrNotAttached
	}
	a := Attachment{ArtifactType: m.ArtifactType, Annotations: m.Annotations}
	for _, layer := range m.Layers {
		data, err := c.Text(ctx, repository, layer.Digest)
		if err != nil {
			return Attachment{}, "", err
		}
		a.Files = append(a.Files, AttachedFile{Name: layer.Annotations[fileTitle], MediaType: layer.MediaType, Data: data})
	}
	return a, m.Subject.Digest, nil
}

// Text reads a blob of at most [MaxAttachedFile] bytes.
func (c *Client) Text(ctx context.Context, repository, digest string) ([]byte, error) {
	body, size, err := c.Blob(ctx, repository, digest)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if size > MaxAttachedFile {
		return nil, fmt.Errorf("blob %s has %d bytes, and %d are read at most", digest, size, MaxAttachedFile)
	}
	return io.ReadAll(body)
}

// pushText pushes a blob that is held in memory.
func (c *Client) pushText(ctx context.Context, repository string, text []byte) error {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return c.PushBlob(ctx, repository, digestOf(text), int64(len(text)), open)
}
