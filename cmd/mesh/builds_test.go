package main

import (
	"sync"
	"testing"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/schema"
)

func TestBuildsAreFollowedAndCancelled(t *testing.T) {
	m := newMesh(t)
	begun := make(chan string, 1)
	m.Builder("n1", func(work reconciletest.Work) *schema.Result {
		work.Say(schema.PhaseClone, "cloning a very large history")
		begun <- work.ID
		reconciletest.Until(t, "the build is cancelled", work.Cancelled)
		r := broken("web", "1", "cancelled in phase clone")
		r.Outcome, r.Error.Reason = schema.OutcomeCancelled, "Cancelled"
		return &r
	})
	var asked result
	var asking sync.WaitGroup
	asking.Go(func() { asked = m.run("build", repository, "modules/web", "--logs") })
	id := <-begun
	reconciletest.Until(t, "its start is recorded", func() bool {
		return reconciletest.Do(m.Mesh, api.BuildShow, api.BuildShowIn{ID: id}).Build.State == "running"
	})
	m.run("builds").exits(exitDone).says("running")
	var followed result
	var following sync.WaitGroup
	following.Go(func() { followed = m.run("builds", "logs", "-f", id[:12]) })
	m.run("builds", "cancel", id[:12]).exits(exitDone).says("build " + id[:12] + " of web: cancelled")
	following.Wait()
	followed.exits(exitFailed).says("cloning a very large history\n").warns("build " + id[:12] + ": cancelled")
	asking.Wait()
	asked.exits(exitFailed).says("cancelled web            Cancelled: cancelled by anna").warns("cloning a very large history")
	m.run("builds", "logs", "-f", id).exits(exitDone)
	m.run("builds", "cancel", id).exits(exitFailed).warns("has ended: cancelled")
	m.run("builds", "--limit", "0").exits(exitUsage).warns("--limit 0: at least 1")
}

func TestBuildVerifySaysWhereTwoDiffer(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	m.Builder("n1", func(work reconciletest.Work) *schema.Result {
		if !work.Verify {
			t.Error("the job does not ask for it")
		}
		r := built("web", "1", nil)
		r.Reproducible = map[string]schema.Reproduction{
			"page": {Same: true}, "server": {Difference: "layer 2, /var/cache/apt/pkgcache.bin: content differs at byte 120"},
		}
		return &r
	})
	m.run("build", repository, "modules/web", "--verify").exits(exitDone).
		says("page           the same both times", "server         differs: layer 2, /var/cache/apt/pkgcache.bin: content differs at byte 120")
	id := answer[api.BuildListOut](m.run("builds", "-o", "json")).Builds[0].ID
	m.run("builds", "show", id).exits(exitDone).says("twice     server     differs: layer 2")
}
