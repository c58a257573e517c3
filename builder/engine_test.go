package builder_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// silentEngine takes connections and answers nothing, as one does whose disk hangs.
func silentEngine(t *testing.T) *engine.Engine {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "engine.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	e, err := engine.Open("unix://"+socket, "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func TestAnEngineThatNeverAnswersHoldsUpNoBuildThatNeedsNone(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	r.Engine = silentEngine(t)
	repo := testenv.Git(t)
	repo.Write("m/module.json", `{"name": "m", "artifacts": {"site": {"kind": "archive", "path": "site"}}, "resources": [{"id": "f", "type": "archive", "artifact": "site", "path": "/srv/m"}]}`)
	repo.Write("m/site/index.html", "<p>hello</p>\n")
	repo.Commit("a site")
	r.built(schema.Job{Repository: repo.URL(), Path: "m"})
}

func TestAnEngineThatNeverAnswersHoldsUpNoStart(t *testing.T) {
	t.Parallel()
	b := &builder.Builder{Name: "one", Work: t.TempDir(), Engine: silentEngine(t)}
	started := make(chan error, 1)
	go func() { started <- b.Start(t.Context()) }()
	select {
	case err := <-started:
		if err != nil {
			t.Fatal(err)
		}
		_ = b.Close()
	case <-time.After(time.Minute):
		t.Fatal("the builder waits for an engine that never answers")
	}
}
