package main

import (
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/schema"
)

func TestTraceSaysWhetherACommitWentOut(t *testing.T) {
	m := newMesh(t)
	listen(m.Join("n1"), works)
	m.Source("web", "1")
	m.Builder("n1", func(work reconciletest.Work) *schema.Result {
		r := built("web", "1", nil)
		return &r
	})
	commit := hex40("web1")
	m.run("trace", commit).exits(exitDone).says("module    web\n", "commit    "+commit[:12], "answer    it is seen and not built\n", "next      mesh build --behind\n")
	m.run("build", repository, "modules/web").exits(exitDone)
	m.run("assign", "web", "--node", "n1").exits(exitDone)
	m.run("trace", commit[:6]).exits(exitDone).says("built", "n1    declared", "answer    it is built and not pushed to n1\n", "next      mesh push n1\n")
	m.run("push", "n1", "-y").exits(exitDone)
	m.run("trace", commit).exits(exitDone).says("n1    running", "answer    it runs on n1\n")
	m.run("trace", "n1").exits(exitDone).says("module    web\n")
	m.run("trace", "absent").exits(exitFailed).warns("mesh: trace: ", "absent", "hint: mesh status")
	if out := answer[api.TraceOut](m.run("trace", "web", "-o", "json")); out.Kind != "module" || len(out.Chains) != 1 || out.Chains[0].Nodes[0].State != "running" {
		t.Errorf("trace -o json: %+v", out)
	}
}

func TestGraphInEachFormat(t *testing.T) {
	m := newMesh(t)
	m.run("graph").exits(exitDone).says("no modules")
	m.Hold(
		built("web", "1", func(m *schema.Manifest) {
			m.Requires = []schema.Requirement{{Name: "postgresql"}, {Name: "cache"}, {Name: "search", Optional: true}}
		}),
		built("pg", "1", func(m *schema.Manifest) {
			m.Provides = []schema.Provision{{Name: "postgresql", Scope: "mesh", Port: 5432}}
			m.Requires = []schema.Requirement{{Name: "cache"}}
		}),
		built("redis", "1", func(m *schema.Manifest) {
			m.Provides = []schema.Provision{{Name: "cache", Scope: "mesh", Port: 6379}}
			m.Requires = []schema.Requirement{{Name: "postgresql"}}
		}),
		built("valkey", "1", func(m *schema.Manifest) { m.Provides = []schema.Provision{{Name: "cache", Scope: "mesh", Port: 6380}} }),
	)
	m.run("graph").exits(exitDone).says(
		"web (ok)\n", "  requires postgresql: pg\n", "  requires search: nobody provides it (optional)\n",
		"  requires cache: one of redis, valkey; an assignment binds one with --bind cache=MODULE\n", "  provides cache\n")
	m.run("graph", "-o", "dot").exits(exitDone).says("digraph mesh {\n", `  "web" -> "pg" [label="postgresql", style=solid];`, `  "web" -> "?search"`, `style=dashed`)
	m.run("graph", "-o", "mermaid").exits(exitDone).says("flowchart LR\n", "  m-web -->|postgresql| m-pg\n", `  m-web -.->|search| p-search{{"nobody provides search"}}`)
	if out := answer[api.GraphOut](m.run("graph", "valkey", "--dependents", "-o", "json")); len(out.Modules) != 4 {
		t.Errorf("on valkey depend %+v", out.Modules)
	}
	m.run("graph", "-o", "table").exits(exitUsage).warns("mesh: graph: -o table is not known here; use text, dot, mermaid, json")
	m.run("status", "-o", "dot").exits(exitUsage).warns("use table, json")
	m.run("graph", "--dependents").exits(exitUsage)
	m.run("graph", "absent").exits(exitFailed).warns("there is no module absent")
}

// What the check says is printed, whatever it is.
func TestTraceSaysWhetherTheBuildIsSigned(t *testing.T) {
	m := newMesh(t)
	m.Hold(built("web", "1", nil))
	m.run("trace", "web").exits(exitDone).says("signed    NOT VERIFIED, missing: no build of this manifest recorded any\n")
	if out := answer[api.TraceOut](m.run("trace", "web", "-o", "json")); out.Chains[0].Check.State != api.ProvenanceMissing {
		t.Errorf("check: %+v", out.Chains[0].Check)
	}
	m.run("trace", "web", "--sbom").exits(exitFailed).warns("no signed list", "web: provenance missing")
	at := time.Now()
	verified := api.ProvenanceCheck{
		State: api.ProvenanceVerified, Builder: "n1", Commit: hex40("web1"), Build: "b-1", Started: at.Add(-2 * time.Second), Finished: at, Message: "its key was withdrawn later",
	}
	if got := signed(verified); !strings.HasPrefix(got, "verified: builder n1 made it of commit "+hex40("web1")[:12]+" in build b-1") || !strings.HasSuffix(got, "took 2s; its key was withdrawn later") {
		t.Errorf("verified reads %q", got)
	}
}
