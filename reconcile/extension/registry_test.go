package extension

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
)

func method(group, name, action string) Method {
	return Handle(api.Call[api.None, api.None]{Group: group, Method: name, Action: action, Kind: api.Query}, Options{},
		func(context.Context, *MethodContext, api.None) (api.None, error) { return api.None{}, nil })
}

func withMethods(name string, methods ...Method) Extension {
	e := Extension{Name: name, API: func(*Context) []Method { return methods }}
	for _, m := range methods {
		if actionForm.MatchString(m.Action) {
			e.Catalog.Actions = append(e.Catalog.Actions, m.Action)
		}
	}
	return e
}

func withReconciler(name string, r Reconciler) Extension {
	if r.Run == nil {
		r.Run = func(context.Context, *Run, string) (string, error) { return Done, nil }
	}
	return Extension{Name: name, Reconcilers: []Reconciler{r}}
}

func TestS2_006_ANameIsAllAnExtensionNeeds(t *testing.T) {
	t.Parallel()
	h, _ := hosted(t, Extension{Name: "bare"})
	if !slices.Contains(h.Names(), "bare") {
		t.Errorf("hosted are %v", h.Names())
	}
	if !refused(t, Extension{}) {
		t.Error("an extension without a name was accepted")
	}
}

func TestS2_007_FormOfNames(t *testing.T) {
	t.Parallel()
	long := "a" + strings.Repeat("b", 63)
	for name, want := range map[string]bool{
		"a": true, long: true, long + "b": false, "Aa": false, "aB": false, "1a": false, "-a": false, "": false, "a-1": true, "a_b": false,
	} {
		if got := !refused(t, Extension{Name: name}); got != want {
			t.Errorf("name %q accepted: %v, want %v", name, got, want)
		}
	}
}

func TestS2_008_ReservedNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"core", "server", "plugins"} {
		if !refused(t, Extension{Name: name}) {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestS2_009_OneNameOnce(t *testing.T) {
	t.Parallel()
	words := refusal(t, Config{Extensions: []Extension{{Name: "twin"}}, Plugins: []Extension{Plugin("twin", Extension{})}})
	if !strings.Contains(words, "twin") {
		t.Errorf("refused with %q", words)
	}
}

func TestS2_010_RequiredExtensionsMustBeRegistered(t *testing.T) {
	t.Parallel()
	words := refusal(t, Config{Extensions: []Extension{{Name: "asker", Requires: []string{"missing"}}}})
	if !strings.Contains(words, "asker") || !strings.Contains(words, "missing") {
		t.Errorf("refused with %q", words)
	}
}

func TestS2_011_RequiringWhatComesLaterPasses(t *testing.T) {
	t.Parallel()
	registered(t, Config{Extensions: []Extension{{Name: "asker", Requires: []string{"later"}}, {Name: "later"}}})
}

func TestS2_015_EveryMethodHasARouteAndStandsInOpenAPI(t *testing.T) {
	t.Parallel()
	h, pool := hosted(t, withMethods("a", method("g1", "m1", "mesh:a:read"), method("g1", "m2", "mesh:a:read"), method("g2", "m1", "mesh:a:read")))
	server := serve(t, h, pool)
	_, document := request(t, server, "GET", "/api/openapi.json", "", "")
	for _, route := range []string{"/api/mesh/g1/m1", "/api/mesh/g1/m2", "/api/mesh/g2/m1", "/api/mesh/system/selfCheck"} {
		if status, body := post(t, server, route, "secret", "{}"); status != 200 {
			t.Errorf("%s answers %d %s", route, status, body)
		}
		if !strings.Contains(document, `"`+route+`"`) {
			t.Errorf("%s does not stand in openapi.json", route)
		}
	}
}

func TestS2_016_TheAPIHookIsCalledOnce(t *testing.T) {
	t.Parallel()
	calls := 0
	e := widgets(nil)
	inner := e.API
	e.API = func(c *Context) []Method { calls++; return inner(c) }
	registered(t, Config{Extensions: []Extension{e}})
	if calls != 1 {
		t.Fatalf("called %d times by registration", calls)
	}
	hosted, _ := hosted(t, e)
	for _, widget := range []string{"w1", "w2"} {
		if _, err := hosted.Invoke(t.Context(), admin, "widgets/poke", []byte(`{"tenant":"t","widget":"`+widget+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 2 {
		t.Fatalf("called %d times by two registrations and two calls", calls)
	}
}

func TestS2_026_FormOfActions(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]bool{
		"mesh:acme:poke": true, "mesh:acme": false, "acme:poke": false, "mesh:a:b:c": false, "mesh:acme:*": false,
	} {
		words := refusal(t, Config{Extensions: []Extension{{Name: "acme", Catalog: Catalog{Actions: []string{action}}}}})
		if (words == "") != want {
			t.Errorf("action %q: %q, want accepted %v", action, words, want)
		}
		if !want && (!strings.Contains(words, action) || !strings.Contains(words, "acme")) {
			t.Errorf("action %q: %q does not name extension and action", action, words)
		}
	}
}

func TestS2_035_MakingAPluginChangesNothingInIt(t *testing.T) {
	t.Parallel()
	given := Extension{Name: "named", Requires: []string{"x"}, Catalog: Catalog{Actions: []string{"mesh:acme:poke"}}}
	made := Plugin("acme", given)
	made.plugin, made.pluginID = false, ""
	if !reflect.DeepEqual(given, made) {
		t.Errorf("%+v became %+v", given, made)
	}
}

func TestS2_038_AnActionNoMethodUsesMayBeDeclared(t *testing.T) {
	t.Parallel()
	registered(t, Config{Extensions: []Extension{{Name: "acme", Catalog: Catalog{Actions: []string{"mesh:acme:read"}}}}})
}

func TestS2_069_AllProblemsAtOnceAndWithoutADatabase(t *testing.T) {
	t.Parallel()
	words := refusal(t, Config{Extensions: []Extension{
		{Name: "Bad"},
		{Name: "asker", Requires: []string{"missing"}},
		{Name: "third", Catalog: Catalog{Actions: []string{"nonsense"}}},
	}})
	for _, want := range []string{"Bad", "missing", "nonsense"} {
		if !strings.Contains(words, want) {
			t.Errorf("%q does not name %s", words, want)
		}
	}
}

func TestS2_071_098_AMigrationBelongsToItsExtension(t *testing.T) {
	t.Parallel()
	words := refusal(t, Config{Extensions: []Extension{{Name: "events", Migrations: []store.Migration{{Name: "rollout/0001_x", SQL: "SELECT 1"}}}}})
	if !strings.Contains(words, "events") || !strings.Contains(words, "rollout/0001_x") {
		t.Errorf("refused with %q", words)
	}
}

func TestS2_072_AllMigrationsAreCheckedAsAWhole(t *testing.T) {
	t.Parallel()
	words := refusal(t, Config{Extensions: []Extension{
		{Name: "a", Migrations: []store.Migration{{Name: "a/0002_x", SQL: "SELECT 1"}, {Name: "a/0001_y", SQL: "SELECT 1"}}},
		{Name: "b", Migrations: []store.Migration{{Name: "b/1_x", SQL: "SELECT 1"}}},
	}})
	if !strings.Contains(words, "a/0001_y") || !strings.Contains(words, "b/1_x") {
		t.Errorf("refused with %q", words)
	}
}

func TestS2_074_RoutesAreUnique(t *testing.T) {
	t.Parallel()
	m := method("group", "method", "mesh:a:read")
	words := refusal(t, Config{Extensions: []Extension{withMethods("first", m), withMethods("second", m)}})
	for _, want := range []string{"first", "second", "group/method"} {
		if !strings.Contains(words, want) {
			t.Errorf("%q does not name %s", words, want)
		}
	}
}

func TestS2_075_076_NamesOfGroupsAndMethods(t *testing.T) {
	t.Parallel()
	long := "A" + strings.Repeat("b", 63)
	cases := map[string]bool{long: true, long + "b": false, "1a": false, "a.b": false, "a_b-C": true}
	for _, reserved := range []string{"then", "catch", "finally", "toJSON", "constructor", "prototype", "__proto__", "plugins"} {
		cases[reserved] = false
	}
	for name, want := range cases {
		for _, m := range []Method{method(name, "m", "mesh:a:read"), method("g", name, "mesh:a:read")} {
			if got := !refused(t, withMethods("a", m)); got != want {
				t.Errorf("%s/%s accepted: %v, want %v", m.Group, m.Name, got, want)
			}
		}
	}
}

func TestS2_077_092_APluginsActionsAreItsOwn(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]bool{"mesh:acme:poke": true, "mesh:modules:push": false, "mesh:other:poke": false} {
		declared := Plugin("acme", Extension{Catalog: Catalog{Actions: []string{action}}})
		if got := refusal(t, Config{Plugins: []Extension{declared}}) == ""; got != want {
			t.Errorf("a plugin's catalog with %s accepted: %v, want %v", action, got, want)
		}
		used := Plugin("acme", Extension{API: func(*Context) []Method { return []Method{method("g", "m", action)} }})
		if got := refusal(t, Config{Plugins: []Extension{used}}) == ""; got != want {
			t.Errorf("a plugin's method with %s accepted: %v, want %v", action, got, want)
		}
	}
}

func TestS2_078_091_MethodsAgreeWithCatalogAndTableBeforeTheStoreIsTouched(t *testing.T) {
	t.Parallel()
	stranger := method("g", "m", "mesh:b:read")
	for name, config := range map[string]Config{
		"no catalog has it": {Extensions: []Extension{{Name: "a", API: func(*Context) []Method { return []Method{stranger} }}}},
		"the table says another": {Extensions: []Extension{withMethods("b", stranger)},
			Table: map[string]string{"g/m": "mesh:b:write"}},
	} {
		// Without a store, touching it would be a panic.
		err := registered(t, config).Initialize(t.Context())
		if err == nil || !strings.Contains(err.Error(), "g/m") {
			t.Errorf("%s: %v, want a refusal naming the method", name, err)
		}
	}
}

func TestS2_085_APluginNeedsAnID(t *testing.T) {
	t.Parallel()
	if refusal(t, Config{Plugins: []Extension{Plugin("", Extension{Name: "acme"})}}) == "" {
		t.Error("a plugin without an id was accepted")
	}
	if refusal(t, Config{Plugins: []Extension{{Name: "acme"}}}) == "" {
		t.Error("an extension that is no plugin was accepted as one")
	}
}

func TestS2_086_APluginsNameIsItsIDUnlessGiven(t *testing.T) {
	t.Parallel()
	h := registered(t, Config{Plugins: []Extension{
		Plugin("acme", Extension{}),
		Plugin("other", Extension{Name: "given", Migrations: []store.Migration{{Name: "given/0001_x", SQL: "SELECT 1"}}}),
	}})
	if !slices.Equal(h.Names()[1:], []string{"acme", "given"}) {
		t.Errorf("hosted are %v", h.Names())
	}
}

func TestS2_109_111_112_113_137_ReconcilersAreChecked(t *testing.T) {
	t.Parallel()
	long := "a" + strings.Repeat("b", 63)
	for name, want := range map[string]bool{
		"acme.widgets": true, long: true, long + "b": false, "Acme": false, ".acme": false, "a_b": true,
		"command-sweeper": false, "outbox-dispatch": false, "event-subscribers": false,
	} {
		if got := !refused(t, withReconciler("a", Reconciler{Name: name, ShardBy: ShardNone})); got != want {
			t.Errorf("reconciler %q accepted: %v, want %v", name, got, want)
		}
	}
	periodic := func(every time.Duration) []Periodic { return []Periodic{{Key: "all", Every: every}} }
	for what, c := range map[string]struct {
		r    Reconciler
		want bool
	}{
		"shardBy pool":          {Reconciler{Name: "r", ShardBy: ShardPool}, true},
		"shardBy nonsense":      {Reconciler{Name: "r", ShardBy: "tenant"}, false},
		"shardBy nothing":       {Reconciler{Name: "r"}, false},
		"role scheduler":        {Reconciler{Name: "r", ShardBy: ShardPool, Role: RoleScheduler}, true},
		"role nonsense":         {Reconciler{Name: "r", ShardBy: ShardPool, Role: "boss"}, false},
		"every second":          {Reconciler{Name: "r", ShardBy: ShardNone, Periodic: periodic(time.Second)}, true},
		"every 999 ms":          {Reconciler{Name: "r", ShardBy: ShardNone, Periodic: periodic(999 * time.Millisecond)}, false},
		"an empty periodic key": {Reconciler{Name: "r", ShardBy: ShardNone, Periodic: []Periodic{{Every: time.Hour}}}, false},
	} {
		if got := !refused(t, withReconciler("a", c.r)); got != c.want {
			t.Errorf("%s accepted: %v, want %v", what, got, c.want)
		}
	}
	r := Reconciler{Name: "same", ShardBy: ShardNone}
	words := refusal(t, Config{Extensions: []Extension{withReconciler("first", r), withReconciler("second", r)}})
	if !strings.Contains(words, "first") || !strings.Contains(words, "second") {
		t.Errorf("the clash of reconcilers is told as %q", words)
	}
}

// Only what stands in SQL is looked at; a comment may say now().
func TestCoreSQLReadsTheMeshsClock(t *testing.T) {
	t.Parallel()
	wall := regexp.MustCompile(`(?i)\b(now\(|current_timestamp|clock_timestamp\(|localtimestamp|transaction_timestamp\()`)
	comment := regexp.MustCompile(`--[^\n]*`)
	var files []string
	for _, pattern := range []string{"migrations/*.sql", "../work/migrations/*.sql", "../work/sql/*.sql"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, hit := range wall.FindAllString(comment.ReplaceAllString(string(text), ""), -1) {
			t.Errorf("%s uses %s", file, hit)
		}
	}
}
