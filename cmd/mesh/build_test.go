package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

func TestS1_072_OneBrokenOfTenLeavesNineBuiltAndExits4(t *testing.T) {
	m := newMesh(t)
	for i := range 10 {
		m.Source(fmt.Sprintf("m%d", i), "1")
	}
	m.builder("n1", func(module string) schema.Result {
		if module == "m5" {
			return broken(module, "1", "main.go:7:2: undefined: x\nand more")
		}
		return built(module, "1", nil)
	})
	r := m.run("build", "--behind").exits(exitPartly)
	if r.lines("built ") != 9 || r.lines("failed ") != 1 || r.lines("") != 10 {
		t.Errorf("not nine built and one failed:\n%s", r.stdout)
	}
	r.says("m5             ToolchainFailed: main.go:7:2: undefined: x\n").warns("hint: correct it and commit")
	if strings.Contains(r.stderr, "no builder") {
		t.Errorf("there is a builder:\n%s", r.stderr)
	}

	list := m.run("builds").exits(exitDone).says("built", "failed", "ToolchainFailed: main.go:7:2: undefined: x")
	if strings.Count(list.stdout, " built ") != 9 || list.lines("") != 11 {
		t.Errorf("not a heading and ten builds:\n%s", list.stdout)
	}
	all := answer[api.BuildListOut](m.run("builds", "--module", "m5", "-o", "json").exits(exitDone)).Builds
	if len(all) != 1 || all[0].Module != "m5" || all[0].State != "failed" {
		t.Fatalf("builds of m5: %+v", all)
	}
	if some := answer[api.BuildListOut](m.run("builds", "--limit", "3", "-o", "json")).Builds; len(some) != 3 {
		t.Errorf("%d builds, of 3 asked for", len(some))
	}
	m.run("builds", "show", all[0].ID[:12]).exits(exitDone).
		says("module    m5", "state     failed", "reason    ToolchainFailed", "undefined: x\n          and more", "remedy    correct it and commit")
	m.run("builds", "logs", all[0].ID).exits(exitDone).says("cloning modules/m5\n")
	m.run("builds", "show", "no-such-build").exits(exitFailed).warns("mesh: builds show: ", "no-such-build")

	// What failed with this very source is built again only when that is asked for.
	m.run("behind").exits(exitDone).says("m5", "undefined: x")
	m.run("build", "--behind").exits(exitPartly).warns("these failed with the very source they have: m5", "--retry")
	m.run("build", "--behind", "--retry").exits(exitFailed).says("failed    m5")
}

func TestBuildOfOnePlace(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	m.builder("n1", func(module string) schema.Result {
		if module == "bad" {
			return broken(module, "1", "no")
		}
		return built(module, "1", nil)
	})
	r := m.run("build", repository, "modules/web").exits(exitDone).says("built     web            sha256:")
	if r.lines("") != 1 {
		t.Errorf("more than one build:\n%s", r.stdout)
	}
	m.run("build", repository, "modules/bad").exits(exitFailed).says("failed    bad            ToolchainFailed: no")
	out := answer[api.BuildWatchOut](m.run("build", repository, "modules/web", "-o", "json").exits(exitDone))
	if len(out.Builds) != 1 || out.Builds[0].Module != "web" {
		t.Errorf("builds %+v", out.Builds)
	}
	if failed := answer[api.BuildWatchOut](m.run("build", repository, "modules/bad", "-o", "json").exits(exitFailed)); failed.Builds[0].Error == nil {
		t.Errorf("builds %+v", failed.Builds)
	}
}

// on calls a function when a text is written to it.
type on struct {
	text string
	call func()
}

func (o on) Write(p []byte) (int, error) {
	if strings.Contains(string(p), o.text) {
		o.call()
	}
	return len(p), nil
}

func TestS1_046_NoBuilderIsToldFromAFailureAndTheWaitMayBeInterrupted(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := m.runWith(ctx, "", on{"no builder is taking work", cancel}, "build", "--behind").exits(exitInterrupted)
	r.warns("no builder is taking work; the builds wait in the queue", "mesh: build: interrupted")
	m.run("builds").exits(exitDone).says("queued")

	m.run("build", "--behind", "--timeout", "3s").exits(exitTimeout).
		warns("mesh: build: no builder is taking work; the builds stay in the queue", "hint: mesh builds shows how far they are")
	if all := answer[api.BuildListOut](m.run("builds", "-o", "json")).Builds; len(all) == 0 || all[0].State != "queued" {
		t.Errorf("what timed out does not go on: %+v", all)
	}
}
