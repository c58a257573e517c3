package main

import (
	"testing"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

func TestPushToAHostThatIsDownSaysSoAndExits4(t *testing.T) {
	m := newMesh(t)
	m.Join("n1")
	m.Hold(built("web", "1", nil))
	m.run("assign", "web", "--node", "n1").exits(exitDone)
	m.run("plan", "n1").exits(exitDone) // waits for the composition, so that the push need not
	m.run("push", "--behind", "-y", "--timeout", "3s").exits(exitPartly).
		says("n1    1           pushed").
		warns("n1: generation 1 pushed", "mesh: push: timed out waiting for n1; ", "hint: mesh node ls")
	if state := m.Node("n1"); state.Pushed != 1 || state.Applied != 0 {
		t.Errorf("node %+v", state)
	}
}

func TestPushSaysWhatBecameOfIt(t *testing.T) {
	m := newMesh(t)
	one, two := m.Join("n1"), m.Join("n2")
	m.Hold(built("web", "1", nil))
	m.run("push", "n1", "n2", "-y", "--timeout", "0s").exits(exitTimeout)
	m.run("assign", "web", "--node", "n1").exits(exitDone).says("web is assigned to n1")
	m.run("assign", "web", "--node", "n2").exits(exitDone)

	// Nothing is pushed unasked.
	m.run("push", "--behind").exits(exitUsage).says("+ create", "container", "web/run").
		warns("there is no terminal to ask on", "hint: -y does what is shown without asking")
	if state := m.Node("n1"); state.Pushed != 0 {
		t.Fatalf("generation %d was pushed", state.Pushed)
	}

	listen(one, works)
	listen(two, func(d schema.Declaration) string {
		if d.Generation == 1 {
			return "web/run: exit 1"
		}
		return ""
	})
	m.run("push", "--behind", "-y").exits(exitPartly).says("n1    1           applied  -", "n2    1           failed   web/run: exit 1")
	out := answer[api.PushOut](m.run("push", "--behind", "-y", "-o", "json").exits(exitDone)).Nodes
	if len(out) != 1 || out[0].Node != "n2" || out[0].State != "applied" || out[0].Generation != 2 {
		t.Errorf("what failed is not pushed again alone: %+v", out)
	}
	m.run("push", "--behind", "-y").exits(exitDone).says("nothing is behind")
	m.run("push", "n9", "-y").exits(exitFailed).warns("there is no node n9", "hint: mesh node ls")
}

func TestBehindAndPlanExitCodes(t *testing.T) {
	m := newMesh(t)
	n := m.Join("n1")
	listen(n, works)
	m.Hold(built("web", "1", nil))
	m.Source("web", "1")
	m.run("assign", "web", "--node", "n1").exits(exitDone)
	m.run("push", "--behind", "-y").exits(exitDone)

	m.run("behind", "--exit-code").exits(exitDone).says("nothing is behind")
	m.run("plan", "--exit-code").exits(exitDone).says("nothing would change")
	m.run("plan", "n1", "--exit-code").exits(exitDone).says("n1 (", "0 changes")

	m.Source("web", "2")
	m.run("behind", "--exit-code").exits(exitBehind).says("web", hex40("web2")[:12], hex40("web1")[:12], "no node is behind")
	m.run("behind").exits(exitDone)
	m.run("why", "web").exits(exitDone).says("behind", "next: mesh build --behind")

	m.Hold(built("web", "2", nil))
	m.run("plan", "--exit-code").exits(exitBehind).says("± recreate", "web/run")
	m.run("plan", "n1", "--exit-code").exits(exitBehind)
	m.run("plan").exits(exitDone)
	m.run("behind", "--exit-code").exits(exitBehind).says("no module is behind", "n1    web sha256:")
	behind := answer[api.BehindOut](m.run("behind", "--exit-code", "-o", "json").exits(exitBehind))
	if len(behind.Modules) != 0 || len(behind.Nodes) != 1 {
		t.Errorf("behind %+v", behind)
	}
	m.run("why", "web", "n1").exits(exitDone).says("next: mesh push n1")
	m.run("push", "--behind", "-y").exits(exitDone)
	m.run("behind", "--exit-code").exits(exitDone)
}
