package registry_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// built is a module with an archive, a bundle and an image, as a builder has it staged.
type built struct {
	manifest schema.Manifest
	layers   []registry.Layer
	image    v1.Image
}

func newBuilt(t *testing.T) built {
	t.Helper()
	image, err := random.Image(1<<10, 2)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	size, err := image.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := built{image: image, layers: []registry.Layer{layer("site", "the site's tar"), layer("program", "the program's tar")}}
	b.manifest = schema.Manifest{
		Schema: schema.Version, Module: "web", Recipe: schema.Digest([]byte("recipe")),
		Source: schema.Source{
			Repository: "https://example.org/mesh.git", Path: "modules/web", Ref: "refs/heads/main",
			Commit: strings.Repeat("a", 40), Tree: strings.Repeat("b", 40),
		},
		Artifacts: map[string]schema.Built{
			"site":    {Kind: schema.KindArchive, Digest: b.layers[0].Digest, Size: b.layers[0].Size, MediaType: schema.MediaTypeTar},
			"program": {Kind: schema.KindBundle, Digest: b.layers[1].Digest, Size: b.layers[1].Size, MediaType: schema.MediaTypeTar},
			"server":  {Kind: schema.KindImage, Digest: digest.String(), Size: size, MediaType: "application/vnd.oci.image.manifest.v1+json"},
		},
	}
	return b
}

func layer(artifact, text string) registry.Layer {
	return registry.Layer{
		Artifact: artifact, Digest: schema.Digest([]byte(text)), Size: int64(len(text)), MediaType: schema.MediaTypeTar,
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil },
	}
}

// publish is what a builder does: images, then everything else.
func (b built) publish(ctx context.Context, client *registry.Client) (string, error) {
	if _, err := client.PushImage(ctx, registry.ImageRepository("web", "server"), b.image); err != nil {
		return "", err
	}
	return client.PublishManifest(ctx, b.manifest, b.layers, nil)
}

func TestManifestIsPublishedAndReadBack(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := store.Client(t)
		b := newBuilt(t)
		digest, err := b.publish(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.publish(t.Context(), client)
		if err != nil || again != digest {
			t.Errorf("published again: digest %s, error %v; want %s", again, err, digest)
		}
		got, err := client.Manifest(t.Context(), "web", digest)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := schema.Canonical(b.manifest)
		have, _ := schema.Canonical(got)
		if !bytes.Equal(want, have) {
			t.Errorf("manifest changed on the way\nwant %s\nhave %s", want, have)
		}
		if _, err := client.Manifest(t.Context(), "db", digest); !registry.NotFound(err) {
			t.Errorf("another module has it: %v", err)
		}
	})
}

func TestPublicationIsRefusedWhenTheManifestNamesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := store.Client(t)
		b := newBuilt(t)
		if _, err := client.PublishManifest(t.Context(), b.manifest, b.layers, nil); !registry.NotFound(err) {
			t.Errorf("without its image: %v", err)
		}
		if _, err := client.PushImage(t.Context(), "modules/web/server", b.image); err != nil {
			t.Fatal(err)
		}
		if _, err := client.PublishManifest(t.Context(), b.manifest, b.layers[:1], nil); err == nil || !strings.Contains(err.Error(), `artifact "program" has no layer`) {
			t.Errorf("without a layer: %v", err)
		}
		wrong := append([]registry.Layer{layer("site", "something else")}, b.layers[1:]...)
		if _, err := client.PublishManifest(t.Context(), b.manifest, wrong, nil); err == nil || !strings.Contains(err.Error(), `layer "site"`) {
			t.Errorf("with another layer: %v", err)
		}
		if n := checkWhole(t, store); n != 0 {
			t.Errorf("%d modules resolve", n)
		}
	})
}

func TestS1_136_ImagesAndArchivesAreFetchedByDigestFromOneRegistry(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		b := newBuilt(t)
		if _, err := b.publish(t.Context(), store.Client(t)); err != nil {
			t.Fatal(err)
		}
		client, token := plain(t, store), store.Token("modules/*", registry.ActionPull)
		for path, digest := range map[string]string{
			"/v2/modules/web/blobs/":            b.manifest.Artifacts["site"].Digest,
			"/v2/modules/web/server/manifests/": b.manifest.Artifacts["server"].Digest,
		} {
			response := get(t, client, "GET", store.URL+path+digest, token, "Accept", documentTypes)
			data, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("%s%s: %s, %v", path, digest, response.Status, err)
			}
			if sum := sha256.Sum256(data); "sha256:"+hex.EncodeToString(sum[:]) != digest {
				t.Errorf("%s%s: other bytes", path, digest)
			}
		}
	})
}

func TestWrongDigestsAreRefused(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := store.Client(t)
		right := schema.Digest([]byte("right"))
		push := func(text string) error {
			return client.PushBlob(t.Context(), "modules/web", right, int64(len(text)), func() (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader(text)), nil
			})
		}
		var status *registry.StatusError
		if err := push("wrong"); !errors.As(err, &status) || status.Status != http.StatusBadRequest {
			t.Errorf("other bytes were pushed: %v", err)
		}
		if there, err := client.HasBlob(t.Context(), "modules/web", right); there || err != nil {
			t.Errorf("there: %v, %v", there, err)
		}
		if err := push("right"); err != nil {
			t.Fatal(err)
		}
		f := newFront(t, store)
		f.spoil = func(_ int, w http.ResponseWriter, _ *http.Request, _ http.Handler) { _, _ = w.Write([]byte("wrong")) }
		body, _, err := registrytest.Client(t, f.config(store)).Blob(t.Context(), "modules/web", right)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if _, err := io.ReadAll(body); !errors.Is(err, registry.ErrDigest) {
			t.Errorf("other bytes were read: %v", err)
		}
	})
}

func TestFailuresThatPassAreRetriedAndOthersAreNot(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	for status, tries := range map[int]int64{429: 3, 500: 3, 503: 3, 403: 1, 400: 1} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			f := newFront(t, store)
			f.spoil = func(n int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
				if n < 3 {
					w.Header().Set("Retry-After", "0")
					w.WriteHeader(status)
					return
				}
				pass.ServeHTTP(w, r)
			}
			_, err := registrytest.Client(t, f.config(store)).HasBlob(t.Context(), "modules/web", schema.Digest(nil))
			if (err == nil) != (tries == 3) || f.requests.Load() != tries {
				t.Errorf("%d requests, error %v", f.requests.Load(), err)
			}
		})
	}
}

func TestTheContextEndsAHungRequest(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	f := newFront(t, store)
	reached := make(chan struct{})
	f.spoil = func(_ int, _ http.ResponseWriter, r *http.Request, _ http.Handler) {
		close(reached)
		<-r.Context().Done()
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reached
		cancel()
	}()
	if err := registrytest.Client(t, f.config(store)).Resolve(ctx, "modules/web", schema.Digest(nil)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestAnotherServersCertificateIsRefused(t *testing.T) {
	t.Parallel()
	store, other := registrytest.Start(t, "127.0.0.2:0"), registrytest.Start(t)
	for name, spoil := range map[string]func(*registry.Config){
		"fingerprint": func(c *registry.Config) { c.Fingerprint = other.Fingerprint },
		"CA":          func(c *registry.Config) { c.Fingerprint, c.CA = "", other.CA },
		"address":     func(c *registry.Config) { c.URL = "https://" + store.Addresses[1] },
	} {
		config := store.Config()
		spoil(&config)
		if err := registrytest.Client(t, config).Resolve(t.Context(), "modules/web", schema.Digest(nil)); err == nil || registry.NotFound(err) {
			t.Errorf("%s of another: %v", name, err)
		}
	}
	if _, err := registry.NewClient(registry.Config{URL: store.URL}); err == nil {
		t.Error("a client that trusts nobody in particular was made")
	}
}
