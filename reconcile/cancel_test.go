package reconcile_test

import (
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/schema"
)

// stopped answers as a builder does whose build was cancelled under way.
func stopped(job schema.Job) *schema.Result {
	r := failed(job, "cancelled in phase clone")
	r.Outcome, r.Error.Reason, r.Error.Remedy = schema.OutcomeCancelled, "Cancelled", ""
	return r
}

// heeding plays a builder that works on the paths named until their builds are cancelled, and
// builds everything else at once.
func (m *mesh) heeding(node string, begun chan<- string, paths ...string) {
	m.Builder(node, func(work reconciletest.Work) *schema.Result {
		if work.Cancelled() {
			return stopped(work.Job)
		}
		work.Say(schema.PhaseClone, "cloning "+work.Path)
		begun <- work.ID
		for _, path := range paths {
			if work.Path == path {
				until(m.t, "the build is cancelled", work.Cancelled)
				return stopped(work.Job)
			}
		}
		return ok("1")(work.Job)
	})
}

func (m *mesh) bindings() int {
	m.t.Helper()
	var bound int
	if err := m.Pool.QueryRow(m.t.Context(), `SELECT count(*) FROM mesh.builds WHERE cancel_bound`).Scan(&bound); err != nil {
		m.t.Fatal(err)
	}
	return bound
}

func TestABuildUnderWayIsCancelled(t *testing.T) {
	m := newMesh(t)
	begun := make(chan string, 10)
	m.heeding("n1", begun, "a")
	build := do(m, api.BuildRequest, api.BuildRequestIn{Repository: repository, Path: "a"}).Builds[0]
	<-begun
	until(t, "its start is recorded", func() bool {
		return do(m, api.BuildShow, api.BuildShowIn{ID: build.ID}).Build.State == "running"
	})
	if state := do(m, api.BuildCancel, api.BuildCancelIn{ID: build.ID[:10]}).State; state != "cancelling" {
		t.Errorf("state %q", state)
	}
	ended := m.ended([]api.Build{build})[0]
	if ended.State != "cancelled" || ended.Error == nil || ended.Error.Reason != "Cancelled" ||
		!strings.Contains(ended.Error.Message, "anna") || !strings.Contains(ended.Error.Message, "phase clone") {
		t.Errorf("ended %s %+v", ended.State, ended.Error)
	}
	until(t, "nobody is told any more", func() bool { return m.bindings() == 0 })
	refused(m, api.BuildCancel, api.BuildCancelIn{ID: build.ID}, api.CodeConflict, "cancelled")
}

func TestABuildThatWaitsIsCancelledAtOnceAndNeverBegins(t *testing.T) {
	m := newMesh(t)
	build := do(m, api.BuildRequest, api.BuildRequestIn{Repository: repository, Path: "a"}).Builds[0]
	if got := do(m, api.BuildCancel, api.BuildCancelIn{ID: build.ID}); got.State != "cancelled" || got.Ended.IsZero() {
		t.Errorf("cancelled: %+v", got)
	}
	until(t, "the broker says so", func() bool { return m.bindings() == 1 })
	begun := make(chan string, 10)
	m.heeding("n1", begun)
	other := do(m, api.BuildRequest, api.BuildRequestIn{Repository: repository, Path: "modules/b"}).Builds
	m.ended(other)
	if first := <-begun; first != other[0].ID {
		t.Error("the cancelled build was begun")
	}
	until(t, "nobody is told any more", func() bool { return m.bindings() == 0 })
}

func TestACancelledBuildWhoseBuilderIsLostEndsAllTheSame(t *testing.T) {
	m := newMesh(t)
	begun := make(chan struct{})
	m.Builder("n1", func(work reconciletest.Work) *schema.Result {
		work.Say(schema.PhaseClone, "cloning")
		close(begun)
		return nil // and never answers
	})
	build := do(m, api.BuildRequest, api.BuildRequestIn{Repository: repository, Path: "a"}).Builds[0]
	<-begun
	until(t, "its start is recorded", func() bool {
		return do(m, api.BuildShow, api.BuildShowIn{ID: build.ID}).Build.State == "running"
	})
	do(m, api.BuildCancel, api.BuildCancelIn{ID: build.ID})
	until(t, "the controller says that it ended", func() bool {
		for _, sql := range []string{
			`UPDATE mesh.builds SET cancelled_at = cancelled_at - interval '1 hour' WHERE outcome = ''`,
			`UPDATE mesh.work SET due = mesh.mesh_now() WHERE kind = 'build.sweep'`,
		} {
			if _, err := m.Pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		return do(m, api.BuildShow, api.BuildShowIn{ID: build.ID}).Build.State == "cancelled"
	})
}

func TestABuildThatWaitsIsJoinedAndOneOfOtherWishesSuperseded(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	in := api.BuildRequestIn{Repository: repository, Path: "modules/web"}
	first := do(m, api.BuildRequest, in).Builds[0]
	again := do(m, api.BuildRequest, in).Builds[0]
	if again.ID != first.ID || !again.Joined || first.Joined {
		t.Errorf("asked twice: %+v, then %+v", first, again)
	}
	if behind := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds; len(behind) != 1 || behind[0].ID != first.ID {
		t.Errorf("what is behind: %+v", behind)
	}
	in.Verify = true
	verify := do(m, api.BuildRequest, in).Builds[0]
	if verify.ID == first.ID {
		t.Error("a build that compares was joined to one that does not")
	}
	old := do(m, api.BuildShow, api.BuildShowIn{ID: first.ID}).Build
	if old.State != "cancelled" || old.Error.Reason != "Superseded" || !strings.Contains(old.Error.Message, verify.ID) {
		t.Errorf("the older one is %s: %+v", old.State, old.Error)
	}
}

// A commit that lands while a build is under way is built by another, and the one under way
// is not waited for once that has succeeded.
func TestABuildUnderWayIsSupersededByTheSuccessOfALaterOne(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	slow, begun := make(chan string, 10), make(chan string, 10)
	m.heeding("n1", slow, "modules/web")
	first := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds[0]
	<-slow
	until(t, "its start is recorded", func() bool {
		return do(m, api.BuildShow, api.BuildShowIn{ID: first.ID}).Build.State == "running"
	})
	if joined := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds[0]; joined.ID != first.ID {
		t.Errorf("no commit since, and another build: %+v", joined)
	}
	if _, err := m.Pool.Exec(t.Context(), `UPDATE catalogue.sources SET seen_at = clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	second := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds[0]
	if second.ID == first.ID {
		t.Fatal("the commit since is built by nobody")
	}
	m.heeding("n2", begun)
	if ended := m.ended([]api.Build{second})[0]; ended.State != "built" {
		t.Errorf("second %+v", ended)
	}
	old := m.ended([]api.Build{first})[0]
	if old.State != "cancelled" || old.Error.Reason != "Superseded" || !strings.Contains(old.Error.Message, second.ID) {
		t.Errorf("first %s: %+v", old.State, old.Error)
	}
}

func TestABuilderCannotCancel(t *testing.T) {
	m := newMesh(t)
	conn := m.Dial("n1", bus.BuilderAccount)
	err := conn.Bind(t.Context(), bus.BuildsCancelled, bus.Binding{Exchange: bus.Answers, Key: bus.KeyBuildCancelled("x")})
	if err == nil {
		t.Error("a builder's account may bind the queue of cancelled builds")
	}
}
