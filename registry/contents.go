package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Blob is what a manifest names by digest, and its own document: bytes that are stored once,
// whoever names them.
type Blob struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Content is a manifest or an index that a repository holds, with what it names.
type Content struct {
	Repository   string
	Digest       string
	Size         int64    // of the document
	Tags         []string // sorted
	MediaType    string
	ArtifactType string
	Children     []string // digests of manifests in the same repository; those of an index
	Subject      string   // digest of what it is attached to; "" of what stands by itself
	Blobs        []Blob   // config and layers
}

// ReferrersTag is the tag under which a registry without a referrers API is told what is
// attached to a digest (distribution-spec 1.1, "Referrers Tag Schema"). No release of the
// distribution project's registry has the API.
func ReferrersTag(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// Tag is a tag of a repository.
type Tag struct {
	Repository string
	Name       string
}

// Contents lists every manifest and index of the registry that has a tag, by repository and
// digest, and the tags whose manifest is gone. It takes a token with [ActionList], and with
// [ActionPull] everywhere.
func (c *Client) Contents(ctx context.Context) ([]Content, []Tag, error) {
	repositories, err := c.Repositories(ctx)
	if err != nil {
		return nil, nil, err
	}
	type reading struct {
		contents []Content
		dangling []Tag
	}
	read := make([]reading, len(repositories))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(contentsReaders)
	for i, repository := range repositories {
		group.Go(func() (err error) {
			read[i].contents, read[i].dangling, err = c.ContentsOf(ctx, repository)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	var contents []Content
	var dangling []Tag
	for _, r := range read {
		contents, dangling = append(contents, r.contents...), append(dangling, r.dangling...)
	}
	return contents, dangling, nil
}

// contentsReaders is how many repositories are read at once.
const contentsReaders = 4

// ContentsOf is [Client.Contents] of one repository.
func (c *Client) ContentsOf(ctx context.Context, repository string) ([]Content, []Tag, error) {
	tags, err := c.Tags(ctx, repository)
	if err != nil {
		return nil, nil, err
	}
	found := map[string]*Content{}
	var dangling []Tag
	for _, tag := range tags {
		if named := digestOfTag(tag); found[named] != nil {
			found[named].Tags = append(found[named].Tags, tag)
			continue
		}
		d, err := c.document(ctx, repository, tag)
		if NotFound(err) {
			dangling = append(dangling, Tag{Repository: repository, Name: tag})
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read %s:%s: %w", repository, tag, err)
		}
		if content := found[d.digest()]; content != nil {
			content.Tags = append(content.Tags, tag)
			continue
		}
		content, err := contentOf(repository, d)
		if err != nil {
			return nil, nil, fmt.Errorf("read %s:%s: %w", repository, tag, err)
		}
		content.Tags = []string{tag}
		found[content.Digest] = &content
	}
	return c.withUntagged(ctx, repository, found, dangling)
}

// withUntagged adds the manifests that have no tag of their own and that an index names: no
// listing has them.
func (c *Client) withUntagged(ctx context.Context, repository string, found map[string]*Content, dangling []Tag) ([]Content, []Tag, error) {
	var open []string
	for _, content := range found {
		open = append(open, content.Children...)
	}
	for len(open) > 0 {
		digest := open[len(open)-1]
		open = open[:len(open)-1]
		if found[digest] != nil {
			continue
		}
		d, err := c.document(ctx, repository, digest)
		if NotFound(err) {
			continue // an index may name platforms that were not mirrored
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read %s@%s: %w", repository, digest, err)
		}
		content, err := contentOf(repository, d)
		if err != nil {
			return nil, nil, fmt.Errorf("read %s@%s: %w", repository, digest, err)
		}
		found[digest] = &content
		open = append(open, content.Children...)
	}
	contents := make([]Content, 0, len(found))
	for _, content := range found {
		slices.Sort(content.Tags)
		contents = append(contents, *content)
	}
	slices.SortFunc(contents, func(a, b Content) int { return strings.Compare(a.Digest, b.Digest) })
	return contents, dangling, nil
}

// digestOfTag is the digest a content tag says it names, or "". It is believed once a manifest
// of that digest was read.
func digestOfTag(tag string) string {
	if digest := "sha256:" + strings.TrimPrefix(tag, "m-"); ContentTag(digest) == tag && digestForm.MatchString(digest) {
		return digest
	}
	return ""
}

// references is what a manifest or an index of any kind names.
type references struct {
	MediaType    string          `json:"mediaType"`
	ArtifactType string          `json:"artifactType"`
	Config       *ociDescriptor  `json:"config"`
	Layers       []ociDescriptor `json:"layers"`
	Blobs        []ociDescriptor `json:"blobs"` // of an artifact manifest of OCI 1.1's drafts
	Manifests    []ociDescriptor `json:"manifests"`
	Subject      *ociDescriptor  `json:"subject"`
}

func parseReferences(data []byte) (references, error) {
	var r references
	err := json.Unmarshal(data, &r)
	return r, err
}

// blobs are the descriptors of what is stored as a blob.
func (r references) blobs() []ociDescriptor {
	all := slices.Concat(r.Layers, r.Blobs)
	if r.Config != nil {
		all = append(all, *r.Config)
	}
	return all
}

// all are the digests of everything a manifest names.
func (r references) all() []string {
	named := append(r.blobs(), r.Manifests...)
	if r.Subject != nil {
		named = append(named, *r.Subject)
	}
	digests := make([]string, 0, len(named))
	for _, one := range named {
		digests = append(digests, one.Digest)
	}
	return digests
}

func contentOf(repository string, d document) (Content, error) {
	r, err := parseReferences(d.data)
	if err != nil {
		return Content{}, err
	}
	content := Content{
		Repository: repository, Digest: d.digest(), Size: int64(len(d.data)), MediaType: d.mediaType, ArtifactType: r.ArtifactType,
	}
	for _, blob := range r.blobs() {
		content.Blobs = append(content.Blobs, Blob{Digest: blob.Digest, Size: blob.Size})
	}
	for _, child := range r.Manifests {
		content.Children = append(content.Children, child.Digest)
	}
	if r.Subject != nil {
		content.Subject = r.Subject.Digest
	}
	return content, nil
}

// Repositories lists the names of all repositories, sorted, empty ones included. It takes a
// token with [ActionList].
func (c *Client) Repositories(ctx context.Context) ([]string, error) {
	var names []string
	err := c.pages(ctx, "/v2/_catalog?n=500", func(text []byte) error {
		var page struct {
			Repositories []string `json:"repositories"`
		}
		if err := json.Unmarshal(text, &page); err != nil {
			return err
		}
		for _, name := range page.Repositories {
			if !repositoryName.MatchString(name) {
				return fmt.Errorf("%q is not a repository's name", name)
			}
		}
		names = append(names, page.Repositories...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Tags lists the tags of a repository, sorted; of one that does not exist there are none.
func (c *Client) Tags(ctx context.Context, repository string) ([]string, error) {
	if !repositoryName.MatchString(repository) {
		return nil, fmt.Errorf("list tags: repository %q is not a name", repository)
	}
	var tags []string
	err := c.pages(ctx, "/v2/"+repository+"/tags/list", func(text []byte) error {
		var page struct {
			Tags []string `json:"tags"`
		}
		err := json.Unmarshal(text, &page)
		tags = append(tags, page.Tags...)
		return err
	})
	if err != nil && !NotFound(err) {
		return nil, fmt.Errorf("list tags of %s: %w", repository, err)
	}
	slices.Sort(tags)
	return slices.Compact(tags), nil
}

// maxPage bounds one answer of a listing, in bytes.
const maxPage = 64 << 20

// pages reads a listing that may come in several answers (RFC 5988 links).
func (c *Client) pages(ctx context.Context, path string, each func(text []byte) error) error {
	for path != "" {
		response, err := c.do(ctx, request{method: http.MethodGet, path: path, want: []int{http.StatusOK}})
		if err != nil {
			return err
		}
		text, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
		_ = response.Body.Close()
		if err != nil {
			return err
		}
		if err := each(text); err != nil {
			return err
		}
		next, err := c.nextPage(response.Header.Get("Link"), path)
		if err != nil {
			return err
		}
		path = next
	}
	return nil
}

// nextPage reads the link to what comes after; "" is the end. A link that leads elsewhere, or
// to where we are, is refused.
func (c *Client) nextPage(link, path string) (string, error) {
	target, relation, ok := strings.Cut(link, ">")
	if !ok || !strings.Contains(relation, `rel="next"`) {
		return "", nil
	}
	next, err := c.base.Parse(strings.TrimPrefix(strings.TrimSpace(target), "<"))
	if err != nil || next.Host != c.base.Host || next.RequestURI() == path {
		return "", fmt.Errorf("the registry continues a listing at %q", link)
	}
	return (&url.URL{Path: next.Path, RawQuery: next.RawQuery}).String(), nil
}

// DeleteManifest takes a manifest or an index, with every tag that names it, out of a
// repository. One that is not there is deleted already. What only it named stays on the disk
// until garbage is collected.
func (c *Client) DeleteManifest(ctx context.Context, repository, digest string) error {
	if err := checkName(repository, digest); err != nil {
		return fmt.Errorf("delete manifest: %w", err)
	}
	if err := c.remove(ctx, repository, digest); err != nil {
		return fmt.Errorf("delete %s@%s: %w", repository, digest, err)
	}
	return nil
}

// DeleteTag takes a tag off what it names. Distribution 2.8 does not: [ErrUnsupported].
func (c *Client) DeleteTag(ctx context.Context, tag Tag) error {
	if err := c.remove(ctx, tag.Repository, tag.Name); err != nil {
		return fmt.Errorf("delete %s:%s: %w", tag.Repository, tag.Name, err)
	}
	return nil
}

// ErrUnsupported is in the chain of an error about something this registry cannot do.
var ErrUnsupported = errors.New("this registry cannot do that")

func (c *Client) remove(ctx context.Context, repository, reference string) error {
	response, err := c.do(ctx, request{
		method: http.MethodDelete, path: "/v2/" + repository + "/manifests/" + reference, want: []int{http.StatusAccepted},
	})
	var status *StatusError
	switch {
	case NotFound(err):
		return nil
	case errors.As(err, &status) && (status.Status == http.StatusMethodNotAllowed || status.Status == http.StatusBadRequest):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	case err != nil:
		return err
	}
	return response.Body.Close()
}

// Collect has the embedded registry free what no manifest names and what nobody who may push
// has spoken of for as long as grace, at least [MinGrace]; dry only counts. It takes a token
// with [ActionCollect]. A collection that takes long is answered as running after some seconds:
// ask again, with its id as run, which is 0 the first time. Any other registry has to be told on
// its own machine: [ErrUnsupported].
func (c *Client) Collect(ctx context.Context, grace time.Duration, dry bool, run int64) (Collection, error) {
	query := url.Values{"grace": {grace.String()}, "run": {strconv.FormatInt(run, 10)}}
	if dry {
		query.Set("dry", "1")
	}
	answer, err := c.collect(ctx, query)
	switch {
	case NotFound(err):
		err = ErrUnsupported
	case err == nil && answer.Error != "":
		err = errors.New("the registry says: " + answer.Error)
	}
	if err != nil {
		return answer, fmt.Errorf("collect garbage: %w", err)
	}
	return answer, nil
}

func (c *Client) collect(ctx context.Context, query url.Values) (answer Collection, err error) {
	response, err := c.do(ctx, request{method: http.MethodPost, path: collectPath + "?" + query.Encode(), want: []int{http.StatusOK}})
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	err = json.NewDecoder(io.LimitReader(response.Body, maxPage)).Decode(&answer)
	return answer, err
}
