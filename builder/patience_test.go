package builder_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// The broker waits two seconds for an acknowledgement; the build lasts until it has lost
// patience and delivered the request again.
func TestABuildThatOutlastsTheBrokersPatienceHasOneResultAndOnePublication(t *testing.T) {
	broker := testenv.NewPrivateBroker(t)
	// Read by each channel as it opens. The broker looks once in a tick.
	broker.Control(t, "eval", "application:set_env(rabbit, consumer_timeout, 2000), application:set_env(rabbit, channel_tick_interval, 500).")
	mesh := buildertest.NewOn(t, broker.BrokerInfo)
	reg := registrytest.Start(t)
	r := newRig(t, "one", reg)
	repo := testenv.Git(t)
	writeSite(repo, ".", "slow")
	repo.Commit("a module")

	var builds atomic.Int32
	proceed := make(chan struct{})
	r.OnPhase = func(p schema.Phase) {
		if p == schema.PhaseBuild && builds.Add(1) == 1 {
			<-proceed
		}
	}
	log := slog.New(&told{message: "request came again, its build goes on", then: sync.OnceFunc(func() { close(proceed) })})
	run(t, &builder.Worker{Builder: r.Builder, Bus: mesh.Dial(mesh.BuilderURL("one")), Log: log})
	mesh.Order(schema.Job{ID: "slow", Repository: repo.URL()})
	result := mesh.Next()
	if result.ID != "slow" || result.Outcome != schema.OutcomeBuilt {
		t.Fatalf("%s: %s %+v", result.ID, result.Outcome, result.Error)
	}
	mesh.Settled()
	if builds.Load() != 1 {
		t.Errorf("it was built %d times", builds.Load())
	}
	manifests, err := filepath.Glob(filepath.Join(reg.Dir, "docker/registry/v2/repositories/modules/slow/_manifests/tags/m-*"))
	if err != nil || len(manifests) != 2 { // the module's and its provenance's
		t.Errorf("published %v, %v", manifests, err)
	}
	// The builder takes the next one, and nothing of the first comes again.
	mesh.Order(schema.Job{ID: "next", Repository: repo.URL()})
	if next := mesh.Next(); next.ID != "next" || next.Outcome != schema.OutcomeBuilt {
		t.Errorf("%s: %s %+v", next.ID, next.Outcome, next.Error)
	}
	mesh.Settled()
}

// told is a log that calls then at a message.
type told struct {
	message string
	then    func()
}

func (l *told) Enabled(context.Context, slog.Level) bool { return true }
func (l *told) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *told) WithGroup(string) slog.Handler            { return l }
func (l *told) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		l.then()
	}
	return nil
}
