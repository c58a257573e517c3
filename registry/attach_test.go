package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
)

func TestAttachmentIsFoundWithItsSubjectAndReadBack(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := store.Client(t)
		p := publications["signed"](t)
		digest := must(p.run(t.Context(), client))
		if again := must(p.run(t.Context(), client)); again != digest {
			t.Errorf("published again as %s, before %s", again, digest)
		}
		plainly := must(publication{built: p.built}.run(t.Context(), client))
		if plainly != digest {
			t.Errorf("what is attached changed the manifest's digest: %s, without it %s", digest, plainly)
		}
		listed := must(client.Referrers(t.Context(), "modules/web", digest))
		if len(listed) != len(attachments) {
			t.Fatalf("%d referrers, want %d", len(listed), len(attachments))
		}
		for i, want := range attachments {
			got, subject, err := client.Attachment(t.Context(), "modules/web", listed[i].Digest)
			if err != nil {
				t.Fatal(err)
			}
			if subject != digest || got.ArtifactType != want.ArtifactType || got.Annotations["of"] != want.Annotations["of"] || listed[i].ArtifactType != want.ArtifactType {
				t.Errorf("got %+v of %s, listed as %+v", got, subject, listed[i])
			}
			for n, file := range want.Files {
				if string(got.Files[n].Data) != string(file.Data) || got.Files[n].Name != file.Name {
					t.Errorf("file %s is %+v", file.Name, got.Files[n])
				}
			}
		}
		if _, _, err := client.Attachment(t.Context(), "modules/web", digest); !errors.Is(err, registry.ErrNotAttached) {
			t.Errorf("a module read as an attachment: %v", err)
		}
		none := digestOf("nothing")
		if listed, err := client.Referrers(t.Context(), "modules/web", none); err != nil || len(listed) != 0 {
			t.Errorf("referrers of nothing: %v, %v", listed, err)
		}
	})
}

// The field's client finds what we attached.
func TestAttachmentsAreReferrersToOtherClients(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	digest := must(publications["signed"](t).run(t.Context(), store.Client(t)))
	at := must(name.NewDigest(store.Address + "/modules/web@" + digest))
	transport := meshTransport(store)
	t.Cleanup(transport.CloseIdleConnections)
	token := store.Token("*", registry.ActionPull)
	index := must(remote.Referrers(at, remote.WithContext(t.Context()), remote.WithTransport(bearer{transport, token})))
	if listed := must(index.IndexManifest()).Manifests; len(listed) != len(attachments) || listed[0].ArtifactType != attachments[0].ArtifactType {
		t.Errorf("referrers: %+v", listed)
	}
}

type bearer struct {
	next  http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// Another builder writes the list it had read before, just after ours was written.
func TestAnEntryThatAnotherWriterTookAwayIsMadeAgain(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	to := registry.Subject{Repository: "modules/web", Digest: digestOf("the subject"), Size: 11}
	theirs := must(store.Client(t).Attach(t.Context(), to, attachments[1]))
	list := store.URL + "/v2/modules/web/manifests/" + strings.Replace(to.Digest, ":", "-", 1)
	token := store.Token("*", registry.ActionPull, registry.ActionPush)
	old := must(io.ReadAll(get(t, plain(t, store), http.MethodGet, list, token, "Accept", documentTypes).Body))
	f := newFront(t, store)
	var once sync.Once
	f.spoil = func(_ int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
		pass.ServeHTTP(w, r)
		if r.Method != http.MethodPut || r.URL.Path != strings.TrimPrefix(list, store.URL) {
			return
		}
		once.Do(func() {
			put := must(http.NewRequestWithContext(t.Context(), http.MethodPut, list, bytes.NewReader(old)))
			put.Header.Set("Authorization", "Bearer "+token)
			put.Header.Set("Content-Type", "application/vnd.oci.image.index.v1+json")
			response := must(plain(t, store).Do(put))
			_ = response.Body.Close()
			if response.StatusCode != http.StatusCreated {
				t.Errorf("the other writer: %s", response.Status)
			}
		})
	}
	ours := must(registrytest.Client(t, f.config(store)).Attach(t.Context(), to, attachments[0]))
	var listed []string
	for _, r := range must(store.Client(t).Referrers(t.Context(), to.Repository, to.Digest)) {
		listed = append(listed, r.Digest)
	}
	if !slices.Equal(listed, []string{theirs, ours}) {
		t.Errorf("listed are %q, want %s and %s", listed, theirs, ours)
	}
}

func TestAttachmentThatWasAlteredIsNotRead(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	client := store.Client(t)
	digest := must(publications["signed"](t).run(t.Context(), client))
	listed := must(client.Referrers(t.Context(), "modules/web", digest))
	f := newFront(t, store)
	f.spoil = func(_ int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, digestOf(`"b"`)) {
			_, _ = w.Write([]byte(`"c"`))
			return
		}
		pass.ServeHTTP(w, r)
	}
	_, _, err := registrytest.Client(t, f.config(store)).Attachment(context.WithoutCancel(t.Context()), "modules/web", listed[1].Digest)
	if !errors.Is(err, registry.ErrDigest) {
		t.Errorf("read with another part: %v", err)
	}
}
