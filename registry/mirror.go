package registry

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Reference is an image outside the mesh, as a module.json writes it.
type Reference struct {
	Host   string // docker.io when the text names none
	Path   string // library/postgres when the text says postgres
	Tag    string
	Digest string // wins over Tag when both are written
}

// ParseReference reads a reference. One with neither tag nor digest is refused: what it means
// changes by itself.
func ParseReference(text string) (Reference, error) {
	parsed, err := name.ParseReference(text)
	if err != nil {
		return Reference{}, fmt.Errorf("image reference %q: %w", text, err)
	}
	r := Reference{Host: parsed.Context().RegistryStr(), Path: parsed.Context().RepositoryStr()}
	if r.Host == name.DefaultRegistry {
		r.Host = "docker.io"
	}
	rest, digest, hasDigest := strings.Cut(text, "@")
	if hasDigest {
		r.Digest = digest
	}
	// A colon before the last slash belongs to a port.
	if last := rest[strings.LastIndex(rest, "/")+1:]; strings.Contains(last, ":") {
		_, r.Tag, _ = strings.Cut(last, ":")
	}
	if r.Tag == "" && r.Digest == "" {
		return Reference{}, fmt.Errorf("image reference %q has neither tag nor digest", text)
	}
	if r.Digest != "" && !digestForm.MatchString(r.Digest) {
		return Reference{}, fmt.Errorf("image reference %q: only sha256 digests are supported", text)
	}
	return r, nil
}

// CarriedRepository is where the mesh's registry keeps what was carried in for the reference.
func (r Reference) CarriedRepository() string {
	return "carried/" + strings.ReplaceAll(strings.ToLower(r.Host), ":", "_") + "/" + r.Path
}

// identifier is what to ask a registry for.
func (r Reference) identifier() string {
	if r.Digest != "" {
		return r.Digest
	}
	return r.Tag
}

// Mirrored is an image that now lies in the mesh's registry.
type Mirrored struct {
	Image
	Upstream string // digest the reference had at its source; differs from Image.Digest when platforms were dropped
	Carried  bool   // found among what was carried in
}

// Mirror copies what an upstream reference means now into a repository of the mesh, with the
// platforms named or all of them. What was carried in is taken first; the outside is asked
// only for what was not.
func (c *Client) Mirror(ctx context.Context, reference string, platforms []string, repository string) (Mirrored, error) {
	r, err := ParseReference(reference)
	if err != nil {
		return Mirrored{}, permanent{err}
	}
	to := target{repository: repository, platforms: platforms}
	from, root, err := c.find(ctx, r)
	if err != nil {
		return Mirrored{}, fmt.Errorf("mirror %s: %w", reference, err)
	}
	own, carried := from.(meshSource)
	if carried {
		to.mountFrom = own.repository
	}
	// From here on by digest: a tag that moves meanwhile changes nothing.
	image, err := c.copyImage(ctx, from, root.digest(), to)
	if err != nil {
		return Mirrored{}, fmt.Errorf("mirror %s: %w", reference, err)
	}
	return Mirrored{Image: image, Upstream: root.digest(), Carried: carried}, nil
}

// ResolveUpstream gives the digest a reference has now, carried or outside, and copies nothing.
func (c *Client) ResolveUpstream(ctx context.Context, reference string) (string, error) {
	r, err := ParseReference(reference)
	if err != nil {
		return "", permanent{err}
	}
	_, root, err := c.find(ctx, r)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", reference, err)
	}
	return root.digest(), nil
}

// find gives the source that has a reference, and what it names there.
func (c *Client) find(ctx context.Context, r Reference) (source, document, error) {
	carried := meshSource{client: c, repository: r.CarriedRepository()}
	root, err := carried.document(ctx, r.identifier())
	if err == nil {
		return carried, root, nil
	}
	if !NotFound(err) && !denied(err) {
		return nil, document{}, err
	}
	there, err := c.outside.repository(r.Host, r.Path)
	if err != nil {
		return nil, document{}, err
	}
	root, err = there.document(ctx, r.identifier())
	if err != nil {
		return nil, document{}, err
	}
	if r.Digest != "" && root.digest() != r.Digest {
		return nil, document{}, fmt.Errorf("%w: wanted %s, got %s", ErrDigest, r.Digest, root.digest())
	}
	return there, root, nil
}

// PushLayout carries an OCI layout on disk in: the registry then has it wherever a module.json
// says reference, as "docker.io/library/postgres:15".
func (c *Client) PushLayout(ctx context.Context, dir, reference string) (Image, error) {
	r, err := ParseReference(reference)
	if err != nil {
		return Image{}, err
	}
	image, err := c.pushLayout(ctx, dir, target{repository: r.CarriedRepository(), tag: r.Tag})
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	if r.Digest != "" && image.Digest != r.Digest {
		return Image{}, fmt.Errorf("carry %s: %w: the layout holds %s", reference, ErrDigest, image.Digest)
	}
	return image, nil
}
