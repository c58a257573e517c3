package reconcile_test

import (
	"strings"
	"testing"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/reconcile/api"
)

// module is what is said of one module, wherever modules are listed.
func (m *mesh) module(name string) api.ModuleStatus {
	m.t.Helper()
	for _, module := range do(m, api.ModuleList, api.None{}).Modules {
		if module.Module == name {
			return module
		}
	}
	m.t.Fatalf("there is no module %s", name)
	return api.ModuleStatus{}
}

func TestSuspendedRepositoryAndModuleAreLeftAloneAndSaidToBe(t *testing.T) {
	m := newMesh(t)
	m.built(manifest("web", "1", current))
	m.Source("web", "2")
	m.built(manifest("api", "1", current))
	m.Source("api", "1")
	behind := func() int { return len(do(m, api.BuildRequest, api.BuildRequestIn{Behind: true}).Builds) }

	do(m, api.RepositorySuspend, api.RepositorySuspendIn{URL: repository, Suspended: true})
	if r := do(m, api.RepositoryList, api.None{}).Repositories[0]; r.State != "suspended" || !strings.Contains(r.Remedy, "mesh repo resume "+repository) {
		t.Errorf("repository %+v", r)
	}
	web, other := m.module("web"), m.module("api")
	if web.State != catalogue.StateSuspended || len(web.Reasons) != 2 || web.Reasons[1].Code != catalogue.Suspended {
		t.Errorf("a module that is behind in a suspended repository: %+v", web)
	}
	if other.State != catalogue.StateSuspended || len(other.Reasons) != 0 || other.Suspended == "" {
		t.Errorf("a current module in a suspended repository: %+v", other)
	}
	told := do(m, api.ModuleBehind, api.None{})
	if len(told.Modules) != 1 || len(told.Unread) != 1 || told.Unread[0].State != "suspended" {
		t.Errorf("behind %+v", told)
	}
	if n := behind(); n != 0 {
		t.Errorf("building what is behind asks for %d builds of a suspended repository", n)
	}
	do(m, api.ModuleSuspend, api.ModuleSuspendIn{Module: "web", Suspended: true})
	do(m, api.RepositorySuspend, api.RepositorySuspendIn{URL: repository})
	if web := m.module("web"); web.State != catalogue.StateSuspended || !strings.Contains(web.Suspended, "suspended by anna") {
		t.Errorf("a suspended module: %+v", web)
	}
	if other := m.module("api"); other.State != catalogue.StateOK {
		t.Errorf("after resuming: %+v", other)
	}
	if n := behind(); n != 0 {
		t.Errorf("building what is behind asks for %d builds of a suspended module", n)
	}
	if why := do(m, api.ModuleWhy, api.WhyIn{Module: "web"}); !strings.Contains(why.Next, "mesh module resume web") {
		t.Errorf("next %q", why.Next)
	}
	do(m, api.ModuleSuspend, api.ModuleSuspendIn{Module: "web"})
	if n := behind(); n != 1 {
		t.Errorf("after resuming %d builds are asked for", n)
	}
	refused(m, api.ModuleSuspend, api.ModuleSuspendIn{Module: "web"}, api.CodeConflict, "not suspended")
	refused(m, api.ModuleSuspend, api.ModuleSuspendIn{Module: "none", Suspended: true}, api.CodeNotFound, "none")
	refused(m, api.RepositorySuspend, api.RepositorySuspendIn{URL: "https://forge.example/none", Suspended: true}, api.CodeNotFound, "none")
}

func TestSuspendedModuleIsBuiltWhenNamed(t *testing.T) {
	m := newMesh(t)
	m.Source("web", "1")
	do(m, api.ModuleSuspend, api.ModuleSuspendIn{Module: "web", Suspended: true})
	if out := do(m, api.BuildRequest, api.BuildRequestIn{Modules: []string{"web"}}); len(out.Builds) != 1 {
		t.Errorf("builds %+v", out.Builds)
	}
}

func TestACatalogueThatSaysNothingIsToldWhereverItMatters(t *testing.T) {
	m := newMesh(t)
	finding := func() *api.Finding {
		for _, f := range do(m, api.SystemSelfCheck, api.None{}).Findings {
			if f.Check == "catalogue.silent" {
				return &f
			}
		}
		return nil
	}
	state := func() string { return do(m, api.ModuleBehind, api.None{}).Catalogue.State }
	if state() != api.CatalogueOK || finding() != nil {
		t.Errorf("a catalogue that speaks is %s, %+v", state(), finding())
	}
	for want, change := range map[string]string{
		api.CatalogueSilent: `UPDATE catalogue.instances SET poll = '1 minute', led_at = now() - interval '5 minutes'`,
		api.CatalogueAbsent: `UPDATE catalogue.instances SET led_at = NULL`,
	} {
		if _, err := m.Pool.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if state() != want || do(m, api.SystemStatus, api.None{}).Catalogue.State != want {
			t.Errorf("the catalogue is %s, want %s", state(), want)
		}
		if f := finding(); f == nil || f.Severity != "error" || f.Fix == "" {
			t.Errorf("%s: finding %+v", want, f)
		}
	}
	m.CatalogueSpeaks()
	if state() != api.CatalogueOK {
		t.Errorf("a catalogue that speaks again is %s", state())
	}
}
