package builder_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// cancelBuild does what the controller does to cancel a build.
func cancelBuild(t *testing.T, mesh *buildertest.Mesh, id string) {
	t.Helper()
	err := mesh.Controller.Bind(t.Context(), bus.BuildsCancelled, bus.Binding{Exchange: bus.Answers, Key: bus.KeyBuildCancelled(id)})
	if err != nil {
		t.Fatal(err)
	}
}

// silent is a repository that accepts and never answers, and counts who asked.
func silent(t *testing.T) (url string, asked chan struct{}) {
	t.Helper()
	asked = make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return server.URL + "/x.git", asked
}

func TestABuildUnderWayIsCancelledAndTheNextIsTaken(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t))
	work(t, r, mesh.Dial(mesh.BuilderURL("one")))
	url, asked := silent(t)
	mesh.Order(schema.Job{ID: "hangs", Repository: url, Path: "modules/a"})
	<-asked
	began := time.Now()
	cancelBuild(t, mesh, "hangs")
	result := mesh.Next()
	if result.ID != "hangs" || result.Outcome != schema.OutcomeCancelled || result.Error == nil || result.Error.Reason != builder.ReasonCancelled {
		t.Errorf("%s ended %s: %+v", result.ID, result.Outcome, result.Error)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("cancelling took %s", took)
	}
	left, err := os.ReadDir(filepath.Join(r.Work, "builds"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	mesh.Order(schema.Job{ID: "next", Repository: "http://127.0.0.1:1/none.git"})
	if next := mesh.Next(); next.ID != "next" || next.Outcome != schema.OutcomeFailed {
		t.Errorf("%s ended %s", next.ID, next.Outcome)
	}
	mesh.Settled()
}

func TestABuildCancelledWhileItWaitedNeverBegins(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t))
	url, asked := silent(t)
	cancelBuild(t, mesh, "waits")
	mesh.Order(schema.Job{ID: "waits", Repository: url, Path: "modules/a"})
	work(t, r, mesh.Dial(mesh.BuilderURL("one")))
	if result := mesh.Next(); result.ID != "waits" || result.Outcome != schema.OutcomeCancelled {
		t.Errorf("%s ended %s: %+v", result.ID, result.Outcome, result.Error)
	}
	if len(asked) > 0 {
		t.Error("the repository was asked all the same")
	}
	mesh.Settled()
}
