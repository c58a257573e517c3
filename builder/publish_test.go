package builder_test

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func current(r schema.Result) *schema.CurrentManifest {
	return &schema.CurrentManifest{Digest: r.Digest, Tree: r.Tree, Recipe: r.Manifest.Recipe}
}

func TestS1_092_RebuildOfTheSameSourceIsUnchanged(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t)
	r := newRig(t, "one", reg)
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	repo.Commit("a module")
	url := repo.URL()
	job := schema.Job{Repository: url, Path: "modules/a"}
	first := r.built(job)
	if again := r.built(job); again.Digest != first.Digest {
		t.Errorf("built again without knowing: %s, before %s", again.Digest, first.Digest)
	}
	before := snapshot(t, reg.Dir)

	job.Current = current(first)
	for _, change := range []string{"", "elsewhere"} {
		if change != "" {
			repo.Write(change, change)
			repo.Commit(change)
		}
		result := r.build(job)
		if result.Outcome != schema.OutcomeUnchanged || result.Digest != first.Digest || result.Manifest.Source.Commit != first.Commit {
			t.Errorf("outcome %s %+v, manifest %s", result.Outcome, result.Error, result.Digest)
		}
		if result.Commit != strings.TrimSpace(repo.Run("rev-parse", "HEAD")) {
			t.Errorf("result has commit %s", result.Commit)
		}
	}
	if !maps.Equal(before, snapshot(t, reg.Dir)) {
		t.Error("an unchanged build wrote to the registry")
	}

	repo.Write("modules/a/site/index.html", "changed")
	repo.Commit("a change")
	if second := r.built(job); second.Digest == first.Digest {
		t.Error("a change gave the same manifest")
	}
	// What is no longer there has to be built, whatever the job says the mesh holds.
	job.Current = &schema.CurrentManifest{Digest: "sha256:" + strings.Repeat("0", 64), Tree: r.built(job).Tree, Recipe: first.Manifest.Recipe}
	r.built(job)
}

func TestOtherRecipeIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, ".", "a")
	repo.Commit("a module")
	url := repo.URL()
	built := r.built(schema.Job{Repository: url, Recipe: builder.RecipeVersion})
	r.built(schema.Job{Repository: url, Recipe: built.Manifest.Recipe})
	for _, other := range []string{"0", "sha256:" + strings.Repeat("0", 64)} {
		r.failed(schema.Job{Repository: url, Recipe: other}, schema.OutcomeRefused, builder.ReasonOtherRecipe)
	}
}

func TestS1_093_NothingIsPublishedUntilEverythingIsBuilt(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t)
	r := newRig(t, "one", reg).withEngine()
	carryTiny(t, r.client)
	repo := testenv.Git(t)
	writeAllKinds(repo)
	// Images are built last: an upstream, an archive and a bundle are done by then.
	repo.Write("modules/all/image/Dockerfile", "FROM docker.io/library/tiny:1.0\nCOPY none /none\n")
	repo.Commit("the last artifact fails")
	before := snapshot(t, reg.Dir)
	result := r.failed(schema.Job{Repository: repo.URL(), Path: "modules/all"}, schema.OutcomeFailed, builder.ReasonImage)
	if n := strings.Count(result.Log, "\nmade sha256:"); n != 3 {
		t.Fatalf("%d artifacts were made before it failed:\n%s", n, result.Log)
	}
	if !maps.Equal(before, snapshot(t, reg.Dir)) {
		t.Error("the registry changed")
	}
	if left := inWork(t, r); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestS1_094_PublishingBrokenOffAnywhereLeavesNoHalfModule(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t)
	repo := testenv.Git(t)
	repo.Write("module.json", `{"name": "all",
  "artifacts": {"site": {"kind": "archive", "path": "site"}, "tiny": {"kind": "upstream", "reference": "docker.io/library/tiny:1.0"}},
  "resources": [{"id": "tiny", "type": "container", "artifact": "tiny"}]}`)
	repo.Write("site/x", "x")
	repo.Commit("two artifacts")
	url := repo.URL()
	direct := reg.Client(t)
	carryTiny(t, direct)
	front := newFront(t, reg)
	r := newRig(t, "one", reg)
	r.Registry = front.client

	broken := 0
	for n := int64(1); ; n++ {
		// A store without the module, and its n-th request of the publishing fails.
		if err := os.RemoveAll(filepath.Join(reg.Dir, "docker/registry/v2/repositories/modules")); err != nil {
			t.Fatal(err)
		}
		front.left.Store(1 << 40)
		r.OnPhase = func(p schema.Phase) {
			if p == schema.PhasePublish {
				front.left.Store(n)
			}
		}
		result := r.build(schema.Job{Repository: url})
		done := front.left.Load() > 0 // publishing takes fewer requests than that
		front.left.Store(1 << 40)
		checkWhole(t, reg, direct)
		if done {
			break
		}
		if result.Outcome == schema.OutcomeBuilt {
			continue // this one had another way
		}
		broken++
		if result.Outcome != schema.OutcomeFailed || result.Error.Reason != builder.ReasonPublish {
			t.Fatalf("request %d fails: %s %+v", n, result.Outcome, result.Error)
		}
		r.OnPhase = nil
		r.built(schema.Job{Repository: url}) // a retry succeeds on what is left
		checkWhole(t, reg, direct)
	}
	if broken < 8 {
		t.Errorf("publishing was broken off at %d requests only", broken)
	}
}

// checkWhole fails when a manifest of the module resolves that names something missing.
func checkWhole(t *testing.T, reg *registrytest.Registry, client *registry.Client) {
	t.Helper()
	tags, err := filepath.Glob(filepath.Join(reg.Dir, "docker/registry/v2/repositories/modules/all/_manifests/tags/m-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range tags {
		digest := "sha256:" + strings.TrimPrefix(filepath.Base(tag), "m-")
		if _, _, err := client.Attachment(t.Context(), "modules/all", digest); err == nil {
			continue // a whole one: what is not is no module's manifest either
		}
		manifest, err := client.Manifest(t.Context(), "all", digest)
		if err != nil {
			t.Errorf("tagged manifest: %v", err)
			continue
		}
		if ok, err := client.HasBlob(t.Context(), "modules/all", manifest.Artifacts["site"].Digest); err != nil || !ok {
			t.Errorf("archive of a manifest is missing: %v", err)
		}
		if err := client.Resolve(t.Context(), "modules/all/tiny", manifest.Artifacts["tiny"].Digest); err != nil {
			t.Errorf("image of a manifest is missing: %v", err)
		}
		if listed, err := client.Referrers(t.Context(), "modules/all", digest); err != nil || len(listed) == 0 {
			t.Errorf("a manifest resolves without its provenance: %v, %v", listed, err)
		}
	}
}

// front stands before a registry and answers 500 to one request, the one that brings left to 0.
// Instead, when set, may answer any other.
type front struct {
	left    atomic.Int64
	instead func(http.ResponseWriter, *http.Request) bool
	client  *registry.Client
}

func newFront(t *testing.T, reg *registrytest.Registry) *front {
	t.Helper()
	f := &front{}
	target, err := url.Parse(reg.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := trusting(t, reg)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if f.left.Add(-1) == 0 {
			http.Error(w, "broken off", http.StatusInternalServerError)
			return
		}
		if f.instead != nil && f.instead(w, req) {
			return
		}
		proxy.ServeHTTP(w, req)
	}))
	ca, err := pki.NewCA("front")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := ca.Issue("front", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	config := reg.Config()
	config.URL, config.Fingerprint, config.Attempts = server.URL, pki.Fingerprint(ca.Cert), 1
	f.client = registrytest.Client(t, config)
	return f
}

// trusting speaks to a registry by its CA.
func trusting(t *testing.T, reg *registrytest.Registry) http.RoundTripper {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(reg.CA))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}
