package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/reconcile"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// tag is carried in; outside it is at a port where nobody listens.
const tag = "127.0.0.1:1/borrowed:1"

// owns makes a tag mean another image than before, and gives its digest.
func owns(t *testing.T, client *registry.Client) string {
	t.Helper()
	image, err := random.Image(1024, 1)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := layout.Write(t.TempDir(), empty.Index)
	if err == nil {
		err = dir.AppendImage(image)
	}
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := client.PushLayout(t.Context(), string(dir), tag)
	if err != nil {
		t.Fatal(err)
	}
	return pushed.Digest
}

func borrowing(digest string) schema.Manifest {
	return manifest("web", "1", func(m *schema.Manifest) {
		m.Artifacts["server"] = schema.Built{
			Kind: schema.KindUpstream, Digest: digest, Size: 10, MediaType: "application/vnd.oci.image.manifest.v1+json", Platforms: []string{"linux/amd64"},
			Upstream: &schema.BuiltUpstream{Reference: tag, Digest: digest},
		}
		m.Resources[0].Image = schema.RegistryName + "/modules/web/server@" + digest
		current(m)
	})
}

// newBorrower is a mesh that looks at tags all the time, and a client of its registry.
func newBorrower(t *testing.T) (*mesh, *registry.Client) {
	t.Helper()
	store := registrytest.Start(t)
	m := newMesh(t)
	m.Stop()
	m.Config.Registry = &reconcile.Registry{URL: store.URL, CA: store.CA, Fingerprint: store.Fingerprint, Key: store.Key}
	m.Config.UpstreamInterval = time.Second
	m.Start()
	return m, store.Client(t)
}

func TestS1_102_AMovedUpstreamTagChangesNoNodeAndItsModuleIsBehind(t *testing.T) {
	m, client := newBorrower(t)
	n := m.node("n1")
	n.listen()
	first := owns(t, client)
	m.Source("web", "1")
	m.built(borrowing(first))
	m.assign("web", "n1")
	m.push("n1")
	told := n.next()
	n.applied(told)
	if image := find(t, told, "web/run").Image; !strings.HasSuffix(image, "@"+first) {
		t.Fatalf("the node runs %s", image)
	}
	if web := m.module("web"); web.State != catalogue.StateOK {
		t.Fatalf("before the tag moved: %+v", web)
	}

	second := owns(t, client)
	reconciletest.Until(t, "the module is behind", func() bool { return m.module("web").State == catalogue.StateBehind })
	reasons := m.module("web").Reasons
	if len(reasons) != 1 || reasons[0].Code != catalogue.UpstreamMoved || !strings.Contains(reasons[0].Message, tag) {
		t.Errorf("reasons %+v", reasons)
	}
	m.Recompose("n1")
	if plan := m.plan("n1"); len(plan.Changes) != 0 {
		t.Errorf("the node would change: %+v", plan.Changes)
	}

	// Building makes what the tag means now, though source and recipe are the same.
	jobs := make(chan schema.Job, 1)
	m.Builder("n2", func(w reconciletest.Work) *schema.Result {
		jobs <- w.Job
		r := result(borrowing(second))
		r.Digest = reconciletest.Digest("second")
		return &r
	})
	if out := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}); len(out.Builds) != 1 {
		t.Fatalf("builds %+v", out.Builds)
	}
	if job := <-jobs; job.Current != nil {
		t.Errorf("the builder is told that it is built already: %+v", job.Current)
	}
	reconciletest.Until(t, "the module is current", func() bool { return m.module("web").State == catalogue.StateOK })
	n.applied(told)
	m.push("n1")
	if image := find(t, n.newer(told), "web/run").Image; !strings.HasSuffix(image, "@"+second) {
		t.Errorf("after build and push the node runs %s", image)
	}
}

func TestAnUpstreamThatCannotBeAskedKeepsItsLastAnswer(t *testing.T) {
	m, client := newBorrower(t)
	m.Source("web", "1")
	m.built(borrowing(owns(t, client)))
	owns(t, client)
	reconciletest.Until(t, "the module is behind", func() bool { return m.module("web").State == catalogue.StateBehind })
	reference, err := registry.ParseReference(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.DeleteTag(t.Context(), registry.Tag{Repository: reference.CarriedRepository(), Name: "1"}); err != nil {
		t.Fatal(err)
	}
	reconciletest.Until(t, "the question fails", func() bool {
		var failing bool
		err := m.Pool.QueryRow(t.Context(), `SELECT failing_since IS NOT NULL FROM mesh.upstreams WHERE reference = $1`, tag).Scan(&failing)
		return err == nil && failing
	})
	if web := m.module("web"); web.State != catalogue.StateBehind {
		t.Errorf("what was seen is forgotten: %+v", web)
	}
	finding := func() bool {
		for _, f := range do(m, api.SystemSelfCheck, api.None{}).Findings {
			if f.Check == "builds.upstreams" && strings.Contains(f.Message, tag) {
				return true
			}
		}
		return false
	}
	if finding() {
		t.Error("a first failure is a finding")
	}
	if _, err := m.Pool.Exec(t.Context(), `UPDATE mesh.upstreams SET failing_since = failing_since - interval '25 hours'`); err != nil {
		t.Fatal(err)
	}
	if !finding() {
		t.Error("nobody is told that a tag could not be asked about for a day")
	}
}
