package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"
)

// ErrDigest is in the chain of every error about bytes that are not what their digest says.
var ErrDigest = errors.New("digest mismatch")

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func checkName(repository, digest string) error {
	if !repositoryName.MatchString(repository) {
		return permanent{fmt.Errorf("repository %q is not a name", repository)}
	}
	if !digestForm.MatchString(digest) {
		return permanent{fmt.Errorf("%s: %q is not a sha256 digest", repository, digest)}
	}
	return nil
}

// PushBlob puts a blob into a repository unless it is there. open is called once for every
// attempt and must give the same bytes each time; a token without pull pushes them always.
func (c *Client) PushBlob(ctx context.Context, repository, digest string, size int64, open func() (io.ReadCloser, error)) error {
	if err := checkName(repository, digest); err != nil {
		return fmt.Errorf("push blob: %w", err)
	}
	there, err := c.HasBlob(ctx, repository, digest)
	if err != nil && !denied(err) {
		return fmt.Errorf("push blob %s: %w", digest, err)
	}
	if there {
		return nil
	}
	if err := c.retry(ctx, func() error { return c.upload(ctx, repository, digest, size, open) }); err != nil {
		return fmt.Errorf("push blob %s to %s: %w", digest, repository, err)
	}
	return nil
}

func denied(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Status == http.StatusForbidden
}

// upload is one attempt: a session, and the whole blob in one request.
func (c *Client) upload(ctx context.Context, repository, digest string, size int64, open func() (io.ReadCloser, error)) error {
	session, err := c.once(ctx, request{
		method: http.MethodPost, path: "/v2/" + repository + "/blobs/uploads/", want: []int{http.StatusAccepted},
	})
	if err != nil {
		return err
	}
	_ = session.Body.Close()
	location, err := c.session(session.Header)
	if err != nil {
		return err
	}
	query := location.Query()
	query.Set("digest", digest)
	done, err := c.once(ctx, request{
		method: http.MethodPut, path: location.Path + "?" + query.Encode(), body: open, size: size,
		header: map[string]string{"Content-Type": "application/octet-stream"},
		want:   []int{http.StatusCreated},
	})
	if err != nil {
		c.abandon(ctx, location)
		return err
	}
	return done.Body.Close()
}

// session gives the place the registry wants the blob at, which must be in the registry.
func (c *Client) session(header http.Header) (*url.URL, error) {
	location, err := c.base.Parse(header.Get("Location"))
	if err != nil || location.Path == "" {
		return nil, permanent{fmt.Errorf("registry answered an upload with the location %q", header.Get("Location"))}
	}
	if location.Host != c.base.Host || location.Scheme != c.base.Scheme {
		return nil, permanent{fmt.Errorf("registry sends uploads to %s, which the token is not for", location.Host)}
	}
	return location, nil
}

// abandonTime is how long a call that has failed, or was cancelled, tidies up after itself.
const abandonTime = 2 * time.Second

// abandon frees what a broken upload holds, after a cancelled call too. A registry that still
// writes what it was sent refuses, because the session has moved on from the place we know: so
// ask where it stands and try again. Distribution 2.8 has no way to be asked; it removes what
// is left after a week, the embedded registry after a day.
func (c *Client) abandon(ctx context.Context, location *url.URL) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTime)
	defer cancel()
	for attempt, delay := 1, 10*time.Millisecond; ; attempt, delay = attempt+1, 2*delay {
		_, err := c.discard(ctx, http.MethodDelete, location.RequestURI(), http.StatusNoContent, http.StatusNotFound)
		if err == nil || attempt >= c.attempts || sleep(ctx, delay) != nil {
			return
		}
		header, err := c.discard(ctx, http.MethodGet, location.RequestURI(), http.StatusNoContent)
		if NotFound(err) {
			return
		}
		if err == nil {
			if moved, err := c.session(header); err == nil {
				location = moved
			}
		}
	}
}

// discard sends a request once and gives the answer's header alone.
func (c *Client) discard(ctx context.Context, method, path string, want ...int) (http.Header, error) {
	response, err := c.once(ctx, request{method: method, path: path, want: want})
	if err != nil {
		return nil, err
	}
	return response.Header, response.Body.Close()
}

// MountBlob makes a blob of another repository of this registry appear in this one, without
// moving bytes. It says false when the registry would not, and the blob has to be pushed.
func (c *Client) MountBlob(ctx context.Context, repository, digest, from string) (bool, error) {
	if err := checkName(repository, digest); err != nil {
		return false, fmt.Errorf("mount blob: %w", err)
	}
	query := url.Values{"mount": {digest}, "from": {from}}
	response, err := c.do(ctx, request{
		method: http.MethodPost, path: "/v2/" + repository + "/blobs/uploads/?" + query.Encode(),
		want: []int{http.StatusCreated, http.StatusAccepted},
	})
	if err != nil {
		return false, fmt.Errorf("mount blob %s from %s: %w", digest, from, err)
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusCreated {
		return true, nil
	}
	if location, err := c.session(response.Header); err == nil {
		c.abandon(ctx, location)
	}
	return false, nil
}

// HasBlob says whether a repository has a blob.
func (c *Client) HasBlob(ctx context.Context, repository, digest string) (bool, error) {
	if err := checkName(repository, digest); err != nil {
		return false, err
	}
	response, err := c.do(ctx, request{
		method: http.MethodHead, path: "/v2/" + repository + "/blobs/" + digest, want: []int{http.StatusOK},
	})
	if NotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, response.Body.Close()
}

// Blob opens a blob and gives its size. Reading fails with [ErrDigest] at the end, or one byte
// past the size, when the bytes are not those of the digest: nothing read before is to be
// relied on until io.EOF.
func (c *Client) Blob(ctx context.Context, repository, digest string) (io.ReadCloser, int64, error) {
	if err := checkName(repository, digest); err != nil {
		return nil, 0, fmt.Errorf("read blob: %w", err)
	}
	response, err := c.do(ctx, request{
		method: http.MethodGet, path: "/v2/" + repository + "/blobs/" + digest, want: []int{http.StatusOK},
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read blob %s of %s: %w", digest, repository, err)
	}
	size, err := strconv.ParseInt(response.Header.Get("Content-Length"), 10, 64)
	if err != nil {
		_ = response.Body.Close()
		return nil, 0, fmt.Errorf("read blob %s of %s: the registry gives no length", digest, repository)
	}
	return verify(response.Body, digest, size), size, nil
}

// verify passes bytes through and compares them with their digest when they end.
func verify(body io.ReadCloser, digest string, size int64) io.ReadCloser {
	return &verifier{body: body, digest: digest, left: size, hash: sha256.New()}
}

type verifier struct {
	body   io.ReadCloser
	digest string
	left   int64
	hash   hash.Hash
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.body.Read(p)
	v.hash.Write(p[:n])
	v.left -= int64(n)
	if v.left < 0 {
		return 0, permanent{fmt.Errorf("%w: more bytes than the size of %s", ErrDigest, v.digest)}
	}
	if err == io.EOF {
		if got := "sha256:" + hex.EncodeToString(v.hash.Sum(nil)); got != v.digest {
			return n, permanent{fmt.Errorf("%w: wanted %s, got %s", ErrDigest, v.digest, got)}
		}
	}
	return n, err
}

func (v *verifier) Close() error { return v.body.Close() }

// digestOf is the digest of a text.
func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}
