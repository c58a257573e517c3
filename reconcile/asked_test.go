package reconcile_test

import (
	"context"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

func TestS1_074_BuildBehindAsksForTheRefAndSaysWhenItMovedOn(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	m.Source("api", "1")
	jobs := make(chan schema.Job, 2)
	m.builder("n1", func(job schema.Job) *schema.Result {
		jobs <- job
		version := map[string]string{"modules/web": "2", "modules/api": "1"}[job.Path] // web's branch moved on
		return ok(version)(job)
	})
	for _, build := range m.ended(do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds) {
		want := api.Build{Module: "web", Commit: hex40("web2"), Noticed: hex40("web1"), Moved: true}
		if build.Module == "api" {
			want = api.Build{Module: "api", Commit: hex40("api1"), Noticed: hex40("api1")}
		}
		if build.Module != want.Module || build.Commit != want.Commit || build.Noticed != want.Noticed || build.Moved != want.Moved {
			t.Errorf("built %+v, want %+v", build, want)
		}
	}
	for range 2 {
		if job := <-jobs; strings.Contains(job.Ref, hex40("web1")) || strings.Contains(job.Ref, hex40("api1")) {
			t.Errorf("the job is pinned to %s", job.Ref)
		}
	}
}

func TestS1_030_BuildsTravelOnAQueueOfTheirOwn(t *testing.T) {
	m := newMesh(t)
	n, d := m.told()
	n.applied(d)
	m.Source("web", "2")
	admin := m.AdminConn()
	m.builder("n1", func(job schema.Job) *schema.Result {
		state, err := admin.Inspect(t.Context(), bus.DeclareQueue(n.Name))
		if err != nil || state.Ready != 0 {
			t.Errorf("the node's queue while a build runs on it: %+v, %v", state, err)
		}
		return ok("2")(job)
	})
	m.ended(do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds)
	select {
	case d := <-n.told:
		t.Errorf("the node was told generation %d", d.Generation)
	default:
	}
}

func TestS1_085_AResultIsRecordedWhetherOrNotTheAskerIsThere(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	asked, answer := make(chan struct{}), make(chan struct{})
	m.builder("n1", func(job schema.Job) *schema.Result {
		close(asked)
		<-answer
		return ok("1")(job)
	})
	gone, leave := context.WithCancel(t.Context())
	builds := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds
	watched := make(chan error, 1)
	go func() {
		_, err := api.BuildWatch.Do(gone, m, api.BuildWatchIn{IDs: []string{builds[0].ID}})
		watched <- err
	}()
	<-asked
	leave()
	<-watched
	close(answer)
	until(t, "the result is recorded", func() bool {
		return do(m, api.BuildShow, api.BuildShowIn{ID: builds[0].ID}).Build.State == "built"
	})
}
