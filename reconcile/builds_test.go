package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/schema"
)

// builder plays a builder that says it clones, and answers jobs with what answer makes of them.
func (m *mesh) builder(node string, answer func(schema.Job) *schema.Result) *reconciletest.Builder {
	m.t.Helper()
	return m.Builder(node, func(work reconciletest.Work) *schema.Result {
		work.Say(schema.PhaseClone, "cloning "+work.Path)
		return answer(work.Job)
	})
}

// ok answers a job with a manifest of the version.
func ok(version string) func(schema.Job) *schema.Result {
	return func(job schema.Job) *schema.Result {
		name := strings.TrimPrefix(job.Path, "modules/")
		r := result(manifest(name, version, current))
		return &r
	}
}

// failed answers a job as a builder does that got nowhere.
func failed(job schema.Job, message string) *schema.Result {
	now := time.Now().UTC()
	return &schema.Result{
		Schema: 1, ID: job.ID, Outcome: schema.OutcomeFailed, Repository: job.Repository, Path: job.Path, Ref: job.Ref,
		Error: &schema.BuildError{Reason: "ToolchainFailed", Message: message, Remedy: "correct it"}, Builder: "b", Started: now, Ended: now,
	}
}

// broken answers a job as a builder does that read the version and could not build it.
func broken(job schema.Job, version, message string) *schema.Result {
	r, built := failed(job, message), ok(version)(job)
	r.Module, r.Commit, r.Tree = built.Module, built.Commit, built.Tree
	return r
}

// ended waits for every build to have its result.
func (m *mesh) ended(builds []api.Build) []api.Build {
	m.t.Helper()
	var ids []string
	for _, build := range builds {
		ids = append(ids, build.ID)
	}
	var out []api.Build
	until(m.t, "the builds end", func() bool {
		out = do(m, api.BuildWatch, api.BuildWatchIn{IDs: ids}).Builds
		return !slices.ContainsFunc(out, func(b api.Build) bool { return b.Ended.IsZero() })
	})
	return out
}

func TestS1_068_BuildBehindBuildsWhatIsBehindAndNoOther(t *testing.T) {
	m := newMesh(t)
	for i := range 10 {
		name := fmt.Sprintf("m%d", i)
		m.built(manifest(name, "1", current))
		m.Source(name, "1")
	}
	for _, name := range []string{"m2", "m5", "m7"} {
		m.Source(name, "2")
	}
	var behind []string
	for _, module := range do(m, api.ModuleBehind, api.None{}).Modules {
		behind = append(behind, module.Module)
		if module.Reasons[0].Code != catalogue.SourceChanged {
			t.Errorf("%s: %v", module.Module, module.Reasons)
		}
	}
	if !slices.Equal(behind, []string{"m2", "m5", "m7"}) {
		t.Fatalf("behind %v", behind)
	}
	m.builder("n1", func(job schema.Job) *schema.Result {
		if job.Ref != "" {
			t.Errorf("the job pins %q", job.Ref)
		}
		if job.Path == "modules/m5" {
			return broken(job, "2", "it does not compile")
		}
		return ok("2")(job)
	})
	out := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true})
	states := map[string]string{}
	for _, build := range m.ended(out.Builds) {
		states[build.Path] = build.State
	}
	want := map[string]string{"modules/m2": "built", "modules/m5": "failed", "modules/m7": "built"}
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("states %v", states)
	}
	left := do(m, api.ModuleBehind, api.None{}).Modules
	if len(left) != 1 || left[0].Module != "m5" || left[0].State != "failed" || !strings.Contains(left[0].Reasons[1].Message, "it does not compile") {
		t.Errorf("left behind %+v", left)
	}
	if again := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}); len(again.Builds) != 0 {
		t.Errorf("what failed on this very input is built again without being asked: %v", again.Builds)
	}
	if retried := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true, Retry: true}); len(retried.Builds) != 1 {
		t.Errorf("retry asks for %v", retried.Builds)
	}
}

func TestS1_070_BehindTogetherWithARepositoryIsRefused(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	refused(m, api.BuildRequest, api.BuildRequestIn{Behind: true, Repository: repository}, api.CodeInvalidInput, "--behind")
	if builds := do(m, api.BuildList, api.BuildListIn{}).Builds; len(builds) != 0 {
		t.Errorf("builds %v", builds)
	}
}

func TestS1_071_NamingRepositoryAndPathBuildsThatAlone(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	m.Source("api", "1")
	m.builder("n1", ok("1"))
	out := do(m, api.BuildRequest, api.BuildRequestIn{Repository: repository, Path: "modules/web"})
	if ended := m.ended(out.Builds); len(ended) != 1 || ended[0].State != "built" || ended[0].Module != "web" {
		t.Fatalf("builds %+v", ended)
	}
	if behind := do(m, api.ModuleBehind, api.None{}).Modules; len(behind) != 1 || behind[0].Module != "api" {
		t.Errorf("behind %+v", behind)
	}
	shown := do(m, api.BuildShow, api.BuildShowIn{ID: out.Builds[0].ID[:8]})
	if len(shown.Artifacts) != 1 || shown.Build.Builder != "n1" {
		t.Errorf("show %+v", shown)
	}
}

func TestS1_082_EveryResultIsKept(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	m.Source("bad", "1")
	m.builder("n1", func(job schema.Job) *schema.Result {
		if job.Path == "modules/bad" {
			return failed(job, "no such base image")
		}
		return ok("1")(job)
	})
	m.ended(do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds)
	m.Stop()
	m.Start()
	states := map[string]string{}
	for _, build := range do(m, api.BuildList, api.BuildListIn{}).Builds {
		states[build.Module] = build.State
		if build.Module == "bad" && (build.Error == nil || build.Error.Reason != "ToolchainFailed" || build.Error.Message != "no such base image") {
			t.Errorf("reason %+v", build.Error)
		}
	}
	if states["web"] != "built" || states["bad"] != "failed" {
		t.Errorf("states %v", states)
	}
}

func TestS1_083_FailureBeforeTheModuleIsKnownKeepsTheRepository(t *testing.T) {
	m := newMesh(t)
	m.builder("n1", func(job schema.Job) *schema.Result { return failed(job, "unreachable") })
	out := do(m, api.BuildRequest, api.BuildRequestIn{Repository: "https://nowhere.example/x.git", Path: "a"})
	build := m.ended(out.Builds)[0]
	if build.Repository != "https://nowhere.example/x.git" || build.Path != "a" || build.Module != "" || build.State != "failed" {
		t.Errorf("build %+v", build)
	}
}

func TestS1_084_RecordingIsIdempotentOnTheCorrelation(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	builder := m.builder("n1", func(schema.Job) *schema.Result { return nil })
	id := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds[0].ID
	r := result(manifest("web", "1", current))
	r.ID = id
	var sent sync.WaitGroup
	for range 5 {
		sent.Go(func() { builder.Answer(r) })
	}
	sent.Wait()
	until(t, "the first is taken", func() bool { return do(m, api.BuildList, api.BuildListIn{}).Builds[0].State == "built" })
	late := *failed(schema.Job{ID: id, Repository: r.Repository, Path: r.Path}, "late")
	builder.Answer(late)
	builds := do(m, api.BuildList, api.BuildListIn{}).Builds
	until(t, "all six are taken", func() bool {
		state, err := m.AdminConn().Inspect(t.Context(), bus.BuildResults)
		builds = do(m, api.BuildList, api.BuildListIn{}).Builds
		return err == nil && state.Ready == 0 && builds[0].State != "queued" && builds[0].State != "running"
	})
	var events int
	if err := m.Pool.QueryRow(t.Context(), `SELECT count(*) FROM mesh.outbox WHERE type = 'build.published'`).Scan(&events); err != nil {
		t.Fatal(err)
	}
	if len(builds) != 1 || builds[0].State != "built" || events != 1 {
		t.Errorf("%d builds, state %s, %d events", len(builds), builds[0].State, events)
	}
}

func TestForgedResultsAreRefusedAndRecorded(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	m.Source("controller", "1")
	m.built(manifest("controller", "1", current))
	builder := m.builder("n1", func(schema.Job) *schema.Result { return nil })
	id := do(m, api.BuildRequest, api.BuildRequestIn{Modules: []string{"web"}}).Builds[0].ID

	unasked := result(manifest("web", "1", current)) // of a build nobody asked for
	builder.Answer(unasked)
	elsewhere := result(manifest("controller", "9", current)) // of another module's place
	elsewhere.ID = id
	builder.Answer(elsewhere)
	posing := result(manifest("web", "1", func(m *schema.Manifest) { // another module's name at the right place
		current(m)
		m.Module = "controller"
	}))
	posing.ID, posing.Module = id, "web"
	builder.Answer(posing)
	until(t, "all three are refused", func() bool {
		var count int
		err := m.Pool.QueryRow(t.Context(), `SELECT count(*) FROM mesh.refused_messages WHERE queue = 'build-results' AND user_id = 'builder.n1'`).Scan(&count)
		return err == nil && count == 3
	})
	if build := do(m, api.BuildShow, api.BuildShowIn{ID: id}).Build; !build.Ended.IsZero() {
		t.Errorf("a forged result ended the build: %+v", build)
	}
	for _, module := range do(m, api.ModuleList, api.None{}).Modules {
		if module.Module == "controller" && module.BuiltFrom != hex40("controller1") {
			t.Errorf("a forged manifest is held: %+v", module)
		}
	}
}

// A name belongs to the place that holds it, whoever builds another place with that name.
func TestABuiltNameDoesNotTakeTheHoldersPlace(t *testing.T) {
	m := newMesh(t)
	m.Source("controller", "1")
	m.built(manifest("controller", "1", current))
	m.builder("n1", func(job schema.Job) *schema.Result {
		r := result(manifest("controller", "9", func(m *schema.Manifest) {
			current(m)
			m.Source.Repository, m.Source.Path = job.Repository, job.Path
		}))
		return &r
	})
	out := do(m, api.BuildRequest, api.BuildRequestIn{Repository: "https://elsewhere.example/evil.git", Path: "x"})
	if build := m.ended(out.Builds)[0]; build.State != "built" {
		t.Fatalf("build %+v", build)
	}
	for _, module := range do(m, api.ModuleList, api.None{}).Modules {
		if module.Module == "controller" && module.BuiltFrom != hex40("controller1") {
			t.Errorf("another place's manifest is held: %+v", module)
		}
	}
}

func TestWatchShowsProgressAndConsumers(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	out := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true})
	if out.Consumers != 0 {
		t.Errorf("%d builders take work, and there is none", out.Consumers)
	}
	go1 := make(chan struct{})
	m.builder("n1", func(job schema.Job) *schema.Result {
		select {
		case <-go1:
		case <-t.Context().Done():
		}
		return ok("1")(job)
	})
	var cursor int64
	var lines []string
	until(t, "progress is heard", func() bool {
		watch := do(m, api.BuildWatch, api.BuildWatchIn{IDs: []string{out.Builds[0].ID}, Cursor: cursor})
		cursor = watch.Cursor
		for _, progress := range watch.Progress {
			lines = append(lines, progress.Line)
		}
		return len(lines) > 0 && watch.Consumers == 1 && watch.Builds[0].State == "running" && watch.Builds[0].Builder == "n1"
	})
	close(go1)
	m.ended(out.Builds)
	if len(lines) != 1 || lines[0] != "cloning modules/web" {
		t.Errorf("progress %v", lines)
	}
}

// The queue is not the record: a job it lost is asked for again.
func TestALostJobIsAskedForAgain(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	id := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds[0].ID
	until(t, "the job is with the broker", func() bool {
		var published bool
		err := m.Pool.QueryRow(t.Context(), `SELECT published_at IS NOT NULL FROM mesh.builds WHERE id = $1`, id).Scan(&published)
		return err == nil && published
	})
	// A builder takes it and is lost with it: acknowledged, and no result.
	taken := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	conn := m.AdminConn()
	var done sync.WaitGroup
	done.Go(func() {
		_ = conn.Consume(ctx, bus.Builds, 1, func(context.Context, bus.Delivery) error { taken <- struct{}{}; return nil })
	})
	<-taken
	cancel()
	done.Wait()
	answered := make(chan struct{})
	m.builder("n1", func(job schema.Job) *schema.Result { close(answered); return ok("1")(job) })
	until(t, "the job is sent again", func() bool {
		for _, sql := range []string{
			`UPDATE mesh.builds SET published_at = published_at - interval '1 hour' WHERE outcome = ''`,
			`UPDATE mesh.work SET due = mesh.mesh_now() WHERE kind = 'build.sweep'`,
		} {
			if _, err := m.Pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-answered:
			return true
		default:
			return false
		}
	})
	if build := m.ended([]api.Build{{ID: id}})[0]; build.State != "built" {
		t.Errorf("build %+v", build)
	}
}

func TestS1_045_AJobThatNoBuilderSurvivesEndsAsFailed(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	id := do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds[0].ID
	conn := m.Dial("n1", bus.BuilderAccount)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var done sync.WaitGroup
	defer done.Wait()
	defer cancel()
	done.Go(func() {
		_ = conn.Consume(ctx, bus.Builds, 1, func(context.Context, bus.Delivery) error { return bus.Requeue(fmt.Errorf("lost")) })
	})
	build := m.ended([]api.Build{{ID: id}})[0]
	if build.State != "failed" || build.Error == nil || build.Error.Reason != "BuildersLost" || build.Error.Remedy == "" {
		t.Errorf("build %+v", build)
	}
}

func TestS1_028_ABuildHappensOnce(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.Source("web", "1")
	var jobs int
	var mu sync.Mutex
	m.builder("n2", func(job schema.Job) *schema.Result {
		mu.Lock()
		jobs++
		mu.Unlock()
		return ok("1")(job)
	})
	m.ended(do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds)
	m.assign("web", "n1")
	for range 10 {
		m.Recompose("n1")
		m.push("n1")
	}
	n.applied(n.next())
	m.Stop()
	m.Start()
	for _, kind := range []string{"build.sweep", "node.compose", "node.deliver"} {
		if _, err := m.Host.Tick(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if builds := do(m, api.BuildList, api.BuildListIn{}).Builds; len(builds) != 1 || jobs != 1 {
		t.Errorf("%d builds, %d jobs", len(builds), jobs)
	}
}

func TestS1_029_NoDeclarationRemembersABuild(t *testing.T) {
	m := newMesh(t)
	m.node("n1")
	m.built(manifest("builder", "1", nil))
	m.assign("builder", "n1")
	before := m.plan("n1").Hash
	m.Source("web", "1")
	m.builder("n1", ok("1"))
	m.ended(do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds)
	if after := m.plan("n1").Hash; after != before {
		t.Errorf("building changed the declaration of the node that built: %s, then %s", before, after)
	}
}

// What no builder could read is refused when it is asked for, in the words it would have had.
func TestABuildThatNoBuilderCouldReadIsRefusedAtOnce(t *testing.T) {
	m := newMesh(t)
	for path, words := range map[string]string{"../..": "..", "/etc": "/etc", "a\x00b": "path"} {
		refused(m, api.BuildRequest, api.BuildRequestIn{Repository: "https://forge.example/x.git", Path: path}, api.CodeInvalidInput, words)
	}
	refused(m, api.BuildRequest, api.BuildRequestIn{Repository: "ext::sh -c id"}, api.CodeInvalidInput, "ext::sh")
	if builds := do(m, api.BuildList, api.BuildListIn{}).Builds; len(builds) != 0 {
		t.Errorf("recorded %+v", builds)
	}
}

// A builder that cannot read its job cannot say what the job was for; the build ends all the same.
func TestARefusalWithoutItsSourceEndsTheBuild(t *testing.T) {
	m := newMesh(t)
	m.builder("n1", func(job schema.Job) *schema.Result {
		r := failed(job, "the job is of a later schema")
		r.Outcome, r.Repository, r.Path, r.Ref = schema.OutcomeRefused, "", "", ""
		return r
	})
	out := do(m, api.BuildRequest, api.BuildRequestIn{Repository: "https://forge.example/x.git", Path: "a"})
	build := m.ended(out.Builds)[0]
	if build.Repository != "https://forge.example/x.git" || build.Path != "a" || build.Error == nil || build.Error.Message != "the job is of a later schema" {
		t.Errorf("build %+v", build)
	}
}
