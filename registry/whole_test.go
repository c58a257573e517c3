package registry_test

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// walker reads a registry over plain HTTP and fails the test when something names what does
// not resolve.
type walker struct {
	t       *testing.T
	store   *registrytest.Registry
	client  *http.Client
	token   string
	modules int
	// attached is how many referrers each module has to have.
	attached int
}

// checkPublished is [checkWhole] of a store that has the one publication, or a part of it.
func checkPublished(t *testing.T, store *registrytest.Registry, p publication) (modules int) {
	t.Helper()
	attached := 0
	if p.signed {
		attached = len(attachments)
	}
	return walk(t, store, attached)
}

// checkWhole walks every manifest of the module web and its artifacts. It gives the number of
// published modules found.
func checkWhole(t *testing.T, store *registrytest.Registry) (modules int) {
	t.Helper()
	return walk(t, store, 0)
}

func walk(t *testing.T, store *registrytest.Registry, attached int) (modules int) {
	t.Helper()
	w := &walker{t: t, store: store, client: plain(t, store), token: store.Token("*", registry.ActionPull), attached: attached}
	for _, repository := range []string{"modules/web", "modules/web/server", "modules/web/program"} {
		var list struct{ Tags []string }
		response, data := w.read("GET", repository, "tags/list")
		if response.StatusCode == http.StatusNotFound {
			continue
		}
		if err := json.Unmarshal(data, &list); err != nil {
			t.Fatal(err)
		}
		for _, tag := range list.Tags {
			w.document(repository, tag)
		}
	}
	return w.modules
}

func (w *walker) read(method, repository, path string) (*http.Response, []byte) {
	w.t.Helper()
	response := get(w.t, w.client, method, w.store.URL+"/v2/"+repository+"/"+path, w.token, "Accept", documentTypes)
	data, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response, data
}

func (w *walker) document(repository, reference string) {
	w.t.Helper()
	response, data := w.read("GET", repository, "manifests/"+reference)
	if response.StatusCode != http.StatusOK {
		w.t.Errorf("%s:%s: named and %s", repository, reference, response.Status)
		return
	}
	if response.Header.Get("Content-Type") == "application/vnd.oci.image.index.v1+json" {
		for _, child := range must(v1.ParseIndexManifest(bytes.NewReader(data))).Manifests {
			w.document(repository, child.Digest.String())
		}
		return
	}
	m := must(v1.ParseManifest(bytes.NewReader(data)))
	for _, layer := range append(m.Layers, m.Config) {
		w.blob(repository, layer.Digest.String())
	}
	if m.Config.MediaType == schema.MediaTypeConfig {
		w.modules++
		w.module(repository, m.Config.Digest.String())
		w.referrers(repository, schema.Digest(data))
	}
}

// referrers reads what is attached as any tool does that knows the distribution specification.
func (w *walker) referrers(repository, digest string) {
	w.t.Helper()
	if w.attached == 0 {
		return
	}
	response, data := w.read("GET", repository, "manifests/"+strings.Replace(digest, ":", "-", 1))
	if response.StatusCode != http.StatusOK {
		w.t.Errorf("module %s resolves and has no referrers: %s", digest, response.Status)
		return
	}
	listed := must(v1.ParseIndexManifest(bytes.NewReader(data))).Manifests
	if len(listed) != w.attached {
		w.t.Errorf("module %s has %d referrers, want %d", digest, len(listed), w.attached)
	}
	for _, referrer := range listed {
		_, data := w.read("GET", repository, "manifests/"+referrer.Digest.String())
		if m := must(v1.ParseManifest(bytes.NewReader(data))); m.Subject == nil || m.Subject.Digest.String() != digest || m.ArtifactType != referrer.ArtifactType {
			w.t.Errorf("referrer %s of %s is of %+v", referrer.Digest, digest, m.Subject)
		}
	}
}

func (w *walker) blob(repository, digest string) {
	w.t.Helper()
	if got, _ := w.read("HEAD", repository, "blobs/"+digest); got.StatusCode != http.StatusOK {
		w.t.Errorf("%s names blob %s: %s", repository, digest, got.Status)
	}
}

func (w *walker) module(repository, config string) {
	w.t.Helper()
	var manifest schema.Manifest
	_, data := w.read("GET", repository, "blobs/"+config)
	if err := json.Unmarshal(data, &manifest); err != nil {
		w.t.Fatal(err)
	}
	for name, built := range manifest.Artifacts {
		switch built.Kind {
		case schema.KindArchive, schema.KindBundle:
			w.blob(repository, built.Digest)
		default:
			w.document(registry.ImageRepository(manifest.Module, name), built.Digest)
		}
		if built.Image != "" {
			w.document(registry.ImageRepository(manifest.Module, name), built.Image)
		}
	}
}

// uploads counts the upload sessions that a store still holds. What distribution leaves of one
// that was given up is a hash state of some hundred bytes, written once more after the removal.
func uploads(t *testing.T, store *registrytest.Registry) (open int) {
	t.Helper()
	err := filepath.WalkDir(store.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "startedat" {
			open++
		}
		return nil // what vanishes meanwhile is no session
	})
	if err != nil {
		t.Fatal(err)
	}
	return open
}
