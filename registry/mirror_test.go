package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
)

// world is what lies outside the mesh: another registry, which can be cut off and counts.
type world struct {
	*registrytest.Registry
	transport *http.Transport
	token     string
	cut       atomic.Bool
	requests  atomic.Int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Registry: registrytest.Start(t)}
	w.transport, w.token = meshTransport(w.Registry), w.Token("*", "pull")
	t.Cleanup(w.transport.CloseIdleConnections)
	return w
}

func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	w.requests.Add(1)
	if w.cut.Load() {
		return nil, errors.New("the outside is cut off")
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return w.transport.RoundTrip(r)
}

// client of a mesh that has this outside.
func (w *world) client(t *testing.T, mesh *registrytest.Registry) *registry.Client {
	t.Helper()
	config := mesh.Config()
	config.Outside, config.Attempts = w, 2
	return registrytest.Client(t, config)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func imageFor(os, architecture string) v1.Image {
	image := must(random.Image(2<<10, 2))
	config := must(image.ConfigFile()).DeepCopy()
	config.OS, config.Architecture = os, architecture
	return must(mutate.ConfigFile(image, config))
}

// indexOf makes an index with a manifest for each platform and an attestation.
func indexOf(platforms ...string) v1.ImageIndex {
	index := v1.ImageIndex(empty.Index)
	for _, platform := range append(platforms, "unknown/unknown") {
		os, architecture, _ := strings.Cut(platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        imageFor(os, architecture),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os, Architecture: architecture}},
		})
	}
	return index
}

func writeLayout(t *testing.T, add func(layout.Path) error) string {
	t.Helper()
	dir := t.TempDir()
	if err := add(must(layout.Write(dir, empty.Index))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (w *world) pushIndex(t *testing.T, repository, tag string, index v1.ImageIndex) {
	t.Helper()
	dir := writeLayout(t, func(p layout.Path) error { return p.AppendIndex(index) })
	image, err := w.Client(t).PushImageLayout(t.Context(), repository, dir)
	if err != nil {
		t.Fatal(err)
	}
	w.tag(t, repository, image.Digest, tag)
}

// tag moves a tag over plain HTTP.
func (w *world) tag(t *testing.T, repository, digest, tag string) {
	t.Helper()
	client, token := plain(t, w.Registry), w.Token("*", "pull", "push")
	found := get(t, client, "GET", w.URL+"/v2/"+repository+"/manifests/"+digest, token, "Accept", documentTypes)
	request := must(http.NewRequestWithContext(t.Context(), http.MethodPut, w.URL+"/v2/"+repository+"/manifests/"+tag, bytes.NewReader(must(io.ReadAll(found.Body)))))
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", found.Header.Get("Content-Type"))
	response := must(client.Do(request))
	_ = response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		t.Fatalf("tag: %s", response.Status)
	}
}

func TestS1_100_AMirroredImageIsPullableWithTheOutsideCut(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		outside, mesh := newWorld(t), store
		index := indexOf("linux/amd64", "linux/arm64")
		outside.pushIndex(t, "library/postgres", "16", index)
		client := outside.client(t, mesh)
		reference := outside.Address + "/library/postgres:16"
		got, err := client.Mirror(t.Context(), reference, nil, "modules/db/server")
		if err != nil {
			t.Fatal(err)
		}
		digest := must(index.Digest()).String()
		if got.Digest != digest || got.Upstream != digest || got.Carried || !slices.Equal(got.Platforms, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("mirrored %+v, want digest %s", got, digest)
		}
		outside.cut.Store(true)
		pullAll(t, mesh, "modules/db/server", digest, must(index.RawManifest()), 3)
		if _, err := client.Mirror(t.Context(), reference, nil, "modules/db/again"); err == nil {
			t.Error("mirrored from an outside that is cut off: this test shows nothing")
		}
	})
}

// documentTypes is what a client has to name: 2.8 shows an index only to those who do.
const documentTypes = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// pullAll reads an index and all below it over plain HTTP, and compares every byte.
func pullAll(t *testing.T, mesh *registrytest.Registry, repository, digest string, want []byte, children int) {
	t.Helper()
	client, token := plain(t, mesh), mesh.Token(repository, "pull")
	read := func(kind, digest string) []byte {
		response := get(t, client, "GET", mesh.URL+"/v2/"+repository+"/"+kind+"/"+digest, token, "Accept", documentTypes)
		data := must(io.ReadAll(response.Body))
		if hash, _, err := v1.SHA256(bytes.NewReader(data)); err != nil || response.StatusCode != http.StatusOK || hash.String() != digest {
			t.Fatalf("%s %s: %s", kind, digest, response.Status)
		}
		return data
	}
	data := read("manifests", digest)
	if want != nil && !bytes.Equal(data, want) {
		t.Error("the index is not the same byte for byte")
	}
	index := must(v1.ParseIndexManifest(bytes.NewReader(data)))
	if len(index.Manifests) != children {
		t.Errorf("index has %d children, want %d", len(index.Manifests), children)
	}
	for _, child := range index.Manifests {
		manifest := must(v1.ParseManifest(bytes.NewReader(read("manifests", child.Digest.String()))))
		for _, layer := range append(manifest.Layers, manifest.Config) {
			read("blobs", layer.Digest.String())
		}
	}
}

func TestMirrorKeepsTheDeclaredPlatformsAndSaysWhichThereAre(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		outside, mesh := newWorld(t), store
		index := indexOf("linux/amd64", "linux/arm64", "linux/s390x")
		outside.pushIndex(t, "library/postgres", "16", index)
		client, reference := outside.client(t, mesh), outside.Address+"/library/postgres:16"
		got, err := client.Mirror(t.Context(), reference, []string{"linux/arm64"}, "modules/db/server")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Platforms, []string{"linux/arm64"}) || got.Digest == got.Upstream || got.Upstream != must(index.Digest()).String() {
			t.Errorf("mirrored %+v", got)
		}
		pullAll(t, mesh, "modules/db/server", got.Digest, nil, 1)
		if _, err := client.Mirror(t.Context(), reference, []string{"linux/mips"}, "modules/db/server"); err == nil || !strings.Contains(err.Error(), "no platform linux/mips, only linux/amd64, linux/arm64, linux/s390x") {
			t.Errorf("a platform it does not have: %v", err)
		}
	})
}

func TestAMovedTagChangesNothingThatWasMirrored(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		outside, mesh := newWorld(t), store
		first, second := indexOf("linux/amd64"), indexOf("linux/amd64")
		outside.pushIndex(t, "library/postgres", "16", first)
		client, reference := outside.client(t, mesh), outside.Address+"/library/postgres:16"
		got, err := client.Mirror(t.Context(), reference, nil, "modules/db/server")
		if err != nil {
			t.Fatal(err)
		}
		outside.pushIndex(t, "library/postgres", "16", second)
		if now, err := client.ResolveUpstream(t.Context(), reference); err != nil || now != must(second.Digest()).String() {
			t.Errorf("the reference means %s now, error %v", now, err)
		}
		if err := client.Resolve(t.Context(), "modules/db/server", got.Digest); err != nil {
			t.Error(err)
		}
		if err := client.Resolve(t.Context(), "modules/db/server", must(second.Digest()).String()); !registry.NotFound(err) {
			t.Errorf("what the tag means now arrived by itself: %v", err)
		}
		pinned := outside.Address + "/library/postgres@" + got.Digest
		if again, err := client.Mirror(t.Context(), pinned, nil, "modules/db/pinned"); err != nil || again.Digest != got.Digest {
			t.Errorf("by digest: %+v, %v", again, err)
		}
	})
}

func TestCarriedImagesAreFoundBeforeTheOutsideIsAsked(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		outside, mesh := newWorld(t), store
		client := outside.client(t, mesh)
		image := imageFor("linux", "amd64")
		dir := writeLayout(t, func(p layout.Path) error { return p.AppendImage(image) })
		carried, err := client.PushLayout(t.Context(), dir, "docker.io/library/postgres:15")
		if err != nil {
			t.Fatal(err)
		}
		if carried.Digest != must(image.Digest()).String() || !slices.Equal(carried.Platforms, []string{"linux/amd64"}) {
			t.Errorf("carried %+v", carried)
		}
		for _, spelling := range []string{"docker.io/library/postgres:15", "postgres:15", "docker.io/library/postgres@" + carried.Digest} {
			got, err := client.Mirror(t.Context(), spelling, []string{"linux/amd64"}, "modules/db/server")
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest != carried.Digest || !got.Carried {
				t.Errorf("%s: mirrored %+v", spelling, got)
			}
		}
		if n := outside.requests.Load(); n != 0 {
			t.Errorf("the outside was asked %d times", n)
		}
		if err := client.Resolve(t.Context(), "modules/db/server", carried.Digest); err != nil {
			t.Error(err)
		}
		if _, err := client.PushLayout(t.Context(), dir, "docker.io/library/postgres@sha256:"+strings.Repeat("0", 64)); !errors.Is(err, registry.ErrDigest) {
			t.Errorf("carried under another digest: %v", err)
		}
	})
}

func TestABusyOutsideIsAskedAgain(t *testing.T) {
	t.Parallel()
	outside, mesh := newWorld(t), registrytest.Start(t)
	outside.pushIndex(t, "library/postgres", "16", indexOf("linux/amd64"))
	f := newFront(t, outside.Registry)
	var refused atomic.Int64
	f.spoil = func(n int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if n == 1 || n == 3 { // the first greeting, then the manifest
			refused.Add(1)
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		r.Header.Set("Authorization", "Bearer "+outside.token)
		pass.ServeHTTP(w, r)
	}
	config := mesh.Config()
	config.Outside = f.Client().Transport
	client := registrytest.Client(t, config)
	reference := strings.TrimPrefix(f.URL, "https://") + "/library/postgres:16"
	if _, err := client.ResolveUpstream(t.Context(), reference); err != nil {
		t.Fatal(err)
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused: this test shows nothing")
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.spoil = func(_ int, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		cancel()
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	if _, err := client.ResolveUpstream(ctx, reference); statusOf(err) != http.StatusTooManyRequests && !errors.Is(err, context.Canceled) {
		t.Errorf("asked to come again in an hour, and the context ended: %v", err)
	}
}

func TestReferencesNeedATagOrADigest(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	for text, want := range map[string]registry.Reference{
		"postgres:16":                         {Host: "docker.io", Path: "library/postgres", Tag: "16"},
		"docker.io/library/postgres:16":       {Host: "docker.io", Path: "library/postgres", Tag: "16"},
		"localhost:5000/a/b:c":                {Host: "localhost:5000", Path: "a/b", Tag: "c"},
		"ghcr.io/a/b@" + digest:               {Host: "ghcr.io", Path: "a/b", Digest: digest},
		"localhost:5000/postgres:1@" + digest: {Host: "localhost:5000", Path: "postgres", Tag: "1", Digest: digest},
	} {
		if got, err := registry.ParseReference(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"postgres", "localhost:5000/postgres", "", "https://docker.io/a:b", "a@sha512:" + strings.Repeat("a", 128), "A:b", "a:b c"} {
		if got, err := registry.ParseReference(text); err == nil {
			t.Errorf("%q was read as %+v", text, got)
		}
	}
	if got := must(registry.ParseReference("localhost:5000/a/b:c")).CarriedRepository(); got != "carried/localhost_5000/a/b" {
		t.Error(got)
	}
}
