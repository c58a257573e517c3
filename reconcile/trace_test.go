package reconcile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// asked builds a module's place and waits for the end.
func (m *mesh) asked(path string) api.Build {
	m.t.Helper()
	return m.ended(do(m, api.BuildRequest, api.BuildRequestIn{Repository: repository, Path: path}).Builds)[0]
}

// traced is the one chain of what is named.
func (m *mesh) traced(subject string) api.TraceChain {
	m.t.Helper()
	out := do(m, api.ModuleTrace, api.TraceIn{Subject: subject})
	if len(out.Chains) != 1 {
		m.t.Fatalf("trace %s: %+v", subject, out.Chains)
	}
	return out.Chains[0]
}

func on(chain api.TraceChain, node string) string {
	at := slices.IndexFunc(chain.Nodes, func(n api.TraceNode) bool { return n.Node == node })
	if at < 0 {
		return ""
	}
	return chain.Nodes[at].State
}

func TestS1_078_ABuildEndsInAnEntryForItsCommit(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	if before := m.traced("web"); before.Digest != "" || !strings.Contains(before.Answer, "not built") || before.Next != "mesh build --behind" {
		t.Errorf("before the build: %+v", before)
	}
	m.builder("n1", ok("1"))
	build := m.asked("modules/web")
	want := result(manifest("web", "1", current))
	chain := m.traced("web")
	if chain.Digest != want.Digest || chain.Commit != want.Commit || !chain.Current {
		t.Errorf("the entry is %s of commit %s, want %s of %s", chain.Digest, chain.Commit, want.Digest, want.Commit)
	}
	if len(chain.Builds) != 1 || chain.Builds[0].ID != build.ID || chain.Seen.IsZero() {
		t.Errorf("builds %+v, seen %s", chain.Builds, chain.Seen)
	}
	if chain.Next != "mesh assign web --node N" {
		t.Errorf("next %q", chain.Next)
	}
}

func TestS1_081_DidMyChangeGoOut(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.node("n2")
	version := "1"
	m.builder("n1", func(job schema.Job) *schema.Result { return ok(version)(job) })
	step := func(v string) string {
		version = v
		m.Source("web", v)
		m.asked("modules/web")
		return hex40("web" + v)
	}
	first := step("1")
	m.assign("web", "n1")
	m.assign("web", "n2")
	m.push("n1")
	n.applied(n.next())
	second := step("2")
	m.Source("web", "3")
	third := hex40("web3")

	pushed, built, seen := m.traced(first), m.traced(second), m.traced(third)
	if on(pushed, "n1") != "running" || on(pushed, "n2") != "" || pushed.Current {
		t.Errorf("pushed: %+v", pushed)
	}
	if on(built, "n1") != "declared" || on(built, "n2") != "declared" || !built.Current || built.Next != "mesh push n1 n2" {
		t.Errorf("built: %+v", built)
	}
	if len(seen.Nodes) != 0 || seen.Digest != "" || seen.Next != "mesh build --behind" {
		t.Errorf("seen: %+v", seen)
	}
	for words, chain := range map[string]api.TraceChain{
		"it runs on n1": pushed, "it is built and not pushed to n1, n2": built, "it is seen and not built": seen,
	} {
		if chain.Answer != words {
			t.Errorf("the answer is %q, want %q", chain.Answer, words)
		}
	}

	m.push("n1")
	if sent := m.traced(second); on(sent, "n1") != "pushed" || sent.Answer != "it is pushed to and not applied by n1; is built and not pushed to n2" {
		t.Errorf("sent: %+v", sent)
	}
	n.applied(n.next())
	if old := m.traced(first); on(old, "n1") != "replaced" || old.Nodes[0].PushedAt.IsZero() {
		t.Errorf("replaced: %+v", old)
	}
	if now := m.traced(second[:8]); on(now, "n1") != "running" || now.Nodes[0].Generation != 2 || now.Nodes[0].PushedBy != "anna" {
		t.Errorf("running: %+v", now)
	}
}

func TestTraceFollowsWhateverIsNamed(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.Source("web", "1")
	m.Source("bad", "1")
	m.builder("n1", func(job schema.Job) *schema.Result {
		if job.Path == "modules/bad" {
			return broken(job, "1", "it does not compile")
		}
		return ok("1")(job)
	})
	build := m.asked("modules/web")
	m.assign("web", "n1")
	m.push("n1")
	n.applied(n.next())
	digest := result(manifest("web", "1", current)).Digest
	for subject, kind := range map[string]string{
		digest: "digest", digest[7:15]: "digest", build.ID: "build", "web": "module", "n1": "node", build.Commit: "commit",
	} {
		out := do(m, api.ModuleTrace, api.TraceIn{Subject: subject})
		if out.Kind != kind || len(out.Chains) != 1 || out.Chains[0].Digest != digest || on(out.Chains[0], "n1") != "running" {
			t.Errorf("%s %s: %+v", kind, subject, out)
		}
	}
	m.asked("modules/bad")
	if bad := m.traced(hex40("bad1")); !strings.Contains(bad.Answer, "it does not compile") || !strings.HasPrefix(bad.Next, "mesh builds show ") {
		t.Errorf("failed: %+v", bad)
	}
	refused(m, api.ModuleTrace, api.TraceIn{Subject: "nothing"}, api.CodeNotFound, `"nothing"`, "mesh status")
	refused(m, api.ModuleTrace, api.TraceIn{Subject: strings.Repeat("0", 40)}, api.CodeNotFound, "no module was read or built", "mesh repo ls")
	refused(m, api.ModuleTrace, api.TraceIn{Subject: "ab"}, api.CodeNotFound, "four")
}

func TestTheGraphShowsProvidersAndWhatIsMissing(t *testing.T) {
	m := newMesh(t)
	provides := func(name string) func(*schema.Manifest) {
		return func(m *schema.Manifest) { m.Provides = []schema.Provision{{Name: name, Scope: "mesh", Port: 5432}} }
	}
	m.built(
		manifest("web", "1", func(m *schema.Manifest) {
			m.Requires = []schema.Requirement{{Name: "postgresql"}, {Name: "cache"}, {Name: "search", Optional: true}}
		}),
		manifest("pg", "1", provides("postgresql")), manifest("redis", "1", provides("cache")), manifest("valkey", "1", provides("cache")),
		manifest("alone", "1", nil),
	)
	names := func(in api.GraphIn) (names []string, edges map[string]api.GraphEdge) {
		out := do(m, api.ModuleGraph, in)
		edges = map[string]api.GraphEdge{}
		for _, module := range out.Modules {
			names = append(names, module.Module)
		}
		for _, edge := range out.Edges {
			edges[edge.Provision] = edge
		}
		return names, edges
	}
	all, edges := names(api.GraphIn{})
	if !slices.Equal(all, []string{"alone", "pg", "redis", "valkey", "web"}) {
		t.Errorf("modules %v", all)
	}
	for provision, want := range map[string]api.GraphEdge{
		"postgresql": {State: api.EdgeResolved, Providers: []string{"pg"}},
		"cache":      {State: api.EdgeAmbiguous, Providers: []string{"redis", "valkey"}},
		"search":     {State: api.EdgeUnresolved, Providers: []string{}, Optional: true},
	} {
		if got := edges[provision]; got.Module != "web" || got.State != want.State || !slices.Equal(got.Providers, want.Providers) || got.Optional != want.Optional {
			t.Errorf("%s: %+v", provision, got)
		}
	}
	if brought, _ := names(api.GraphIn{Module: "web"}); !slices.Equal(brought, []string{"pg", "redis", "valkey", "web"}) {
		t.Errorf("web brings %v", brought)
	}
	if dependents, _ := names(api.GraphIn{Module: "pg", Dependents: true}); !slices.Equal(dependents, []string{"pg", "web"}) {
		t.Errorf("on pg depend %v", dependents)
	}
	refused(m, api.ModuleGraph, api.GraphIn{Module: "none"}, api.CodeNotFound, "none")
}

// The registry is a module like any other that others bind to; the graph shows it as the one
// provider.
func TestS1_139_TheRegistryIsTheModuleThatProvidesArtifactStore(t *testing.T) {
	m := newMesh(t)
	m.node("n1")
	m.node("n2", "container-runtime")
	m.built(
		manifest("registry", "1", func(m *schema.Manifest) {
			m.Provides = []schema.Provision{{Name: "artifact-store", Scope: "mesh", Port: 5000}}
		}),
		manifest("builder", "1", func(m *schema.Manifest) { m.Requires = []schema.Requirement{{Name: "artifact-store"}} }),
	)
	m.assign("registry", "n1")
	m.assign("builder", "n2")
	edges := do(m, api.ModuleGraph, api.GraphIn{Module: "builder"}).Edges
	if len(edges) != 1 || edges[0].Provision != "artifact-store" || edges[0].State != api.EdgeResolved || !slices.Equal(edges[0].Providers, []string{"registry"}) {
		t.Errorf("edges %+v", edges)
	}
	plan := m.plan("n2")
	if len(plan.Blocked) != 0 {
		t.Errorf("the builder on another node does not bind to it: %+v", plan.Blocked)
	}
}
