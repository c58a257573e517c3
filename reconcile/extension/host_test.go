package extension

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// recorded is an extension that writes its Start and Stop into a journal.
func recorded(name string, j *journal, failure error) Extension {
	return Extension{
		Name: name,
		Start: func(ctx context.Context, c *Context) error {
			j.add("+" + name)
			if failure != nil {
				return failure
			}
			// Slow: a later one that did not wait would be recorded first.
			_, err := c.Store.Exec(ctx, `SELECT pg_sleep(0.02)`)
			j.add("=" + name)
			return err
		},
		Stop: func(context.Context) error { j.add("-" + name); return nil },
	}
}

func TestS2_012_059_079_MigrationsRunInRegistrationOrderAfterCore(t *testing.T) {
	t.Parallel()
	migrated := func(name string) Extension {
		return Extension{Name: name, Migrations: []store.Migration{{Name: name + "/0001_x", SQL: "SELECT 1"}}}
	}
	_, pool := hosted(t, migrated("zeta"), migrated("alpha"))
	rows, err := pool.Query(t.Context(), `SELECT name FROM mesh.mesh_migrations ORDER BY applied_at, ctid`)
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	core := len(ledger) - 2
	if core < 1 || !slices.Equal(ledger[core:], []string{"zeta/0001_x", "alpha/0001_x"}) {
		t.Errorf("the ledger is %v", ledger)
	}
	for _, name := range ledger[:core] {
		if !strings.HasPrefix(name, "core/") {
			t.Errorf("%s was applied before the extensions", name)
		}
	}
}

func TestS2_030_StartComesAfterAllMigrations(t *testing.T) {
	t.Parallel()
	first := Extension{Name: "first", Start: func(ctx context.Context, c *Context) error {
		_, err := c.Store.Exec(ctx, `SELECT id FROM mesh.widgets`) // a later extension's
		return err
	}}
	hosted(t, first, widgets(nil))
}

func TestS2_031_032_StartsInOrderAndStopsInReverse(t *testing.T) {
	t.Parallel()
	j := &journal{}
	h, _ := hosted(t, recorded("a", j, nil), recorded("b", j, nil), recorded("c", j, nil))
	if err := h.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := j.String(); got != "+a =a +b =b +c =c -c -b -a" {
		t.Errorf("the order was %s", got)
	}
}

func TestS2_081_082_AFailingStartStopsWhatWasStarted(t *testing.T) {
	t.Parallel()
	j, failure := &journal{}, errors.New("no luck")
	h := registered(t, Config{
		Store:      openStore(t, testenv.Database(t)),
		Extensions: []Extension{recorded("a", j, nil), recorded("b", j, nil), recorded("c", j, failure), recorded("d", j, nil)},
	})
	if err := h.Initialize(t.Context()); !errors.Is(err, failure) {
		t.Errorf("Initialize answers %v", err)
	}
	if got := j.String(); got != "+a =a +b =b +c -b -a" {
		t.Errorf("the order was %s", got)
	}
	if h.Ready() {
		t.Error("it says it is ready")
	}
}

func TestS2_083_StopEndsTheWorkersFirst(t *testing.T) {
	t.Parallel()
	j := &journal{}
	running := make(chan struct{}, 1)
	e := withReconciler("worker", Reconciler{Name: "worker", ShardBy: ShardNone, Run: func(ctx context.Context, _ *Run, _ string) (string, error) {
		running <- struct{}{}
		<-ctx.Done()
		j.add("run-ended")
		return "", ctx.Err()
	}})
	e.Stop = func(context.Context) error { j.add("stopped"); return nil }
	pool := openStore(t, testenv.Database(t))
	h := registered(t, Config{Store: pool, Extensions: []Extension{e}})
	if err := h.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := h.Context().Transact(t.Context(), func(tx pgx.Tx) error {
		return h.Context().Work.Enqueue(t.Context(), tx, "worker", "k", time.Time{})
	})
	if err != nil {
		t.Fatal(err)
	}
	<-running
	if err := h.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := j.String(); got != "run-ended stopped" {
		t.Errorf("the order was %s", got)
	}
}

func TestS2_080_203_TheClockIsTheDatabases(t *testing.T) {
	t.Parallel()
	// The database's clock is an hour ahead from its first migration on; this process's is not.
	ahead := Extension{Name: "ahead", Migrations: []store.Migration{{Name: "ahead/0001_clock", SQL: `
CREATE OR REPLACE FUNCTION mesh.mesh_now() RETURNS timestamptz LANGUAGE sql STABLE
AS $$ SELECT pg_catalog.statement_timestamp() + interval '1 hour' $$`}}}
	var apart time.Duration
	ahead.Start = func(ctx context.Context, c *Context) error {
		var database time.Time
		err := c.Store.QueryRow(ctx, `SELECT mesh.mesh_now()`).Scan(&database)
		apart = c.Clock.Now().Sub(database).Abs()
		return err
	}
	h, _ := hosted(t, ahead)
	if apart > 5*time.Second {
		t.Errorf("in Start the clock was %s from mesh_now()", apart)
	}
	if lead := time.Until(h.Context().Clock.Now()); lead < 59*time.Minute {
		t.Errorf("the clock leads the process's by %s, want an hour", lead)
	}
}

func TestS2_227_NothingIsServedBeforeEveryStartHasReturned(t *testing.T) {
	t.Parallel()
	begun, proceed := make(chan struct{}), make(chan struct{})
	slow := Extension{Name: "slow", Start: func(context.Context, *Context) error {
		close(begun)
		<-proceed
		return nil
	}}
	pool := openStore(t, testenv.Database(t))
	h := registered(t, Config{Store: pool, Manual: true, Extensions: []Extension{widgets(nil), slow}})
	initialized := make(chan error, 1)
	go func() { initialized <- h.Initialize(context.WithoutCancel(t.Context())) }()
	<-begun
	server := serve(t, h, pool)
	body := `{"tenant":"t","widget":"w"}`
	if status, _ := request(t, server, "GET", "/readyz", "", ""); status != 503 {
		t.Errorf("readyz answers %d during a Start", status)
	}
	if status, _ := request(t, server, "GET", "/healthz", "", ""); status != 200 {
		t.Errorf("healthz answers %d during a Start", status)
	}
	if status, _ := post(t, server, "/api/mesh/widgets/poke", "secret", body); status != 503 {
		t.Errorf("a method answers %d during a Start", status)
	}
	close(proceed)
	if err := <-initialized; err != nil {
		t.Fatal(err)
	}
	if status, _ := request(t, server, "GET", "/readyz", "", ""); status != 200 {
		t.Errorf("readyz answers %d afterwards", status)
	}
	if status, text := post(t, server, "/api/mesh/widgets/poke", "secret", body); status != 200 {
		t.Errorf("a method answers %d %s afterwards", status, text)
	}
	if err := h.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, _ := request(t, server, "GET", "/readyz", "", ""); status != 503 {
		t.Errorf("readyz answers %d after Stop", status)
	}
}

func TestS2_230_StartRunsInEveryRoleAndAgain(t *testing.T) {
	t.Parallel()
	pool := openStore(t, testenv.Database(t))
	starts := 0
	for _, roles := range [][]string{{RoleControllers}, {RoleScheduler}, nil, nil} {
		e := widgets(nil)
		e.Start = func(context.Context, *Context) error { starts++; return nil }
		h := registered(t, Config{Store: pool, Roles: roles, Extensions: []Extension{e}})
		if err := h.Initialize(t.Context()); err != nil {
			t.Fatalf("roles %v: %v", roles, err)
		}
		if err := h.Stop(t.Context()); err != nil {
			t.Fatalf("roles %v: %v", roles, err)
		}
	}
	if starts != 4 {
		t.Errorf("started %d times in 4 modes", starts)
	}
}

func TestS2_130_131_135_RolesDecideWhatAProcessRuns(t *testing.T) {
	t.Parallel()
	extensions := []Extension{
		withReconciler("a", Reconciler{Name: "plain", ShardBy: ShardNone}),
		withReconciler("b", Reconciler{Name: "placer", ShardBy: ShardPool, Role: RoleScheduler}),
	}
	for _, c := range []struct {
		roles         []string
		plain, placer bool
	}{{nil, true, true}, {[]string{RoleControllers}, true, false}, {[]string{RoleScheduler}, false, true}} {
		h, _ := hostedWith(t, Config{Extensions: extensions, Roles: c.roles})
		_, plain := h.Tick(t.Context(), "plain")
		_, placer := h.Tick(t.Context(), "placer")
		if (plain == nil) != c.plain || (placer == nil) != c.placer {
			t.Errorf("roles %v run plain: %v, placer: %v", c.roles, plain, placer)
		}
	}
}

func TestS2_017_200_202_AReconcilerRunsWithItsContext(t *testing.T) {
	t.Parallel()
	var run *Run
	var key string
	e := withReconciler("worker", Reconciler{Name: "worker.kind", ShardBy: ShardNode, Run: func(ctx context.Context, r *Run, k string) (string, error) {
		run, key = r, k
		return Done, r.Transact(ctx, func(tx pgx.Tx) error {
			// The fence's lock stands: a successor's update would have to wait.
			var locked int
			err := tx.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'mesh.leases'::regclass AND mode = 'RowShareLock'`).Scan(&locked)
			if locked != 1 {
				t.Error("Transact did not fence")
			}
			return err
		})
	}})
	h, pool := hosted(t, e)
	err := pool.Tx(t.Context(), func(tx pgx.Tx) error {
		return h.Context().Work.Enqueue(t.Context(), tx, "worker.kind", "n1", time.Time{})
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := h.Tick(t.Context(), "worker.kind"); n != 1 || err != nil {
		t.Fatalf("ticked %d keys: %v", n, err)
	}
	if key != "n1" || run.Tx == nil {
		t.Errorf("ran %q", key)
	}
	complete(t, "a reconciler", run.Context)
}

// complete fails unless every port of the context is set.
func complete(t *testing.T, where string, c *Context) {
	t.Helper()
	if c == nil || c.Store == nil || c.Work == nil || c.Events == nil || c.Desired == nil || c.Leases == nil || c.Clock == nil ||
		c.Log == nil || c.Transact == nil || c.AfterCommit == nil || c.Sections == nil || c.HandleReport == nil || c.Hosted == nil {
		t.Errorf("%s gets a context without %+v", where, c)
	}
}

func TestS2_200_EveryHookGetsTheContext(t *testing.T) {
	t.Parallel()
	got := map[string]*Context{}
	e := Extension{
		Name: "all",
		API:  func(c *Context) []Method { got["api"] = c; return nil },
		Section: func(_ context.Context, c *Context, _ Node) (Section, error) {
			got["section"] = c
			return Section{}, nil
		},
		SelfCheck: func(_ context.Context, c *Context) ([]api.Finding, error) {
			got["selfCheck"] = c
			return nil, nil
		},
		Start: func(_ context.Context, c *Context) error { got["start"] = c; return nil },
	}
	h, _ := hosted(t, e)
	if _, err := h.Sections(t.Context(), Node{Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	h.SelfCheck(t.Context())
	for _, hook := range []string{"api", "section", "selfCheck", "start"} {
		complete(t, hook, got[hook])
	}
}

func TestS2_019_187_SectionsAreAskedInOrderAndMerged(t *testing.T) {
	t.Parallel()
	j := &journal{}
	part := func(name string) Extension {
		return Extension{Name: name, Section: func(_ context.Context, _ *Context, n Node) (Section, error) {
			j.add(name + ":" + n.Name)
			return Section{Modules: map[string]string{"shared": name, name: n.Labels["zone"]}}, nil
		}}
	}
	h := registered(t, Config{Extensions: []Extension{part("b"), part("a")}, Plugins: []Extension{Plugin("c", part(""))}})
	got, err := h.Sections(t.Context(), Node{Name: "n1", Labels: map[string]string{"zone": "z"}})
	if err != nil {
		t.Fatal(err)
	}
	if j.String() != "b:n1 a:n1 :n1" || got.Modules["shared"] != "" || got.Modules["a"] != "z" || got.Modules["b"] != "z" {
		t.Errorf("asked %s, merged %v", j, got.Modules)
	}
}

func TestS2_197_207_InvalidateWakesTheComposerOfThatNodeOnly(t *testing.T) {
	t.Parallel()
	j := &journal{}
	h, _ := hosted(t, withReconciler("delivery", Reconciler{Name: ComposeKind, ShardBy: ShardNode, Run: func(_ context.Context, _ *Run, key string) (string, error) {
		j.add(key)
		return Done, nil
	}}))
	failure := errors.New("no")
	for node, outcome := range map[string]error{"committed": nil, "undone": failure} {
		err := h.Context().Transact(t.Context(), func(tx pgx.Tx) error {
			if err := h.Context().Desired.Invalidate(t.Context(), tx, node); err != nil {
				t.Error(err)
			}
			return outcome
		})
		if !errors.Is(err, outcome) {
			t.Error(err)
		}
	}
	if _, err := h.Tick(t.Context(), ComposeKind); err != nil {
		t.Fatal(err)
	}
	if j.String() != "committed" {
		t.Errorf("composed %s", j)
	}
}

// noting is a status handler that writes a row and ends as it is told.
func noting(name string, j *journal, end func() error) Extension {
	return Extension{Name: name, StatusHandlers: []StatusHandler{func(ctx context.Context, c *Context, tx pgx.Tx, report schema.Report) error {
		j.add(name)
		if _, err := tx.Exec(ctx, `INSERT INTO mesh.widgets (id, tenant) VALUES ($1, $2)`, name, report.Node); err != nil {
			return err
		}
		if err := c.Work.Enqueue(ctx, tx, name, report.Node, time.Time{}); err != nil {
			return err
		}
		return end()
	}}}
}

func TestS2_020_021_StatusHandlersWorkUnderTheirOwnSavepoints(t *testing.T) {
	t.Parallel()
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit=%v", commit), func(t *testing.T) {
			t.Parallel()
			j := &journal{}
			h, pool := hosted(t, widgets(nil),
				noting("good", j, func() error { return nil }),
				noting("failing", j, func() error { return errors.New("broken") }),
				noting("panicking", j, func() error { panic("broken") }),
				noting("last", j, func() error { return nil }))
			failure := errors.New("the report's own transaction fails")
			err := h.Context().Transact(t.Context(), func(tx pgx.Tx) error {
				if err := h.HandleReport(t.Context(), tx, schema.Report{Node: "n1"}); err != nil {
					t.Error(err)
				}
				if !commit {
					return failure
				}
				return nil
			})
			if commit == (err != nil) {
				t.Error(err)
			}
			if j.String() != "good failing panicking last" {
				t.Errorf("called %s", j)
			}
			want := 0
			if commit {
				want = 2
			}
			if rows, work := count(t, pool, "widgets"), count(t, pool, "work"); rows != want || work != want {
				t.Errorf("%d rows and %d work items, want %d each", rows, work, want)
			}
		})
	}
}

func finding(severity string) []api.Finding {
	return []api.Finding{{Check: "check", Severity: severity, Message: "message", Fix: "fix", Count: 3}}
}

func checking(name string, check func() ([]api.Finding, error)) Extension {
	return Extension{Name: name, SelfCheck: func(context.Context, *Context) ([]api.Finding, error) { return check() }}
}

func TestS2_233_234_FindingsOfAllWithFailuresAndPanicsAsOneEach(t *testing.T) {
	t.Parallel()
	h, _ := hosted(t,
		checking("good", func() ([]api.Finding, error) { return finding(SeverityInfo), nil }),
		checking("failing", func() ([]api.Finding, error) { return finding(SeverityInfo), errors.New("broken") }),
		checking("panicking", func() ([]api.Finding, error) { panic("broken") }),
		checking("last", func() ([]api.Finding, error) { return finding(SeverityWarning), nil }))
	direct := h.SelfCheck(t.Context())
	var checks []string
	for _, f := range direct.Findings {
		checks = append(checks, f.Check+"/"+f.Severity)
	}
	want := "check/info extension.failing/error extension.panicking/error check/warning"
	if got := strings.Join(checks, " "); got != want || direct.OK {
		t.Errorf("found %s, ok %v; want %s", got, direct.OK, want)
	}
	answer, err := h.Invoke(t.Context(), admin, "system/selfCheck", nil)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(answer) != fmt.Sprint(direct) {
		t.Errorf("the method answers %v, the host %v", answer, direct)
	}
}

func TestS2_235_OnlyAnErrorMakesTheReportNotOK(t *testing.T) {
	t.Parallel()
	for severity, want := range map[string]bool{SeverityError: false, SeverityWarning: true, SeverityInfo: true} {
		h := registered(t, Config{Extensions: []Extension{checking("a", func() ([]api.Finding, error) { return finding(severity), nil })}})
		if got := h.SelfCheck(t.Context()).OK; got != want {
			t.Errorf("with a finding of severity %s ok is %v", severity, got)
		}
	}
}

func TestS2_093_094_AnUndeclaredMethodServesAndIsWarnedOf(t *testing.T) {
	t.Parallel()
	m := method("g", "m", "mesh:acme:read")
	table := map[string]string{"system/selfCheck": "mesh:system:read", "system/version": "mesh:system:read"}
	h, _ := hostedWith(t, Config{Extensions: []Extension{withMethods("acme", m)}, Table: table})
	if _, err := h.Invoke(t.Context(), admin, "g/m", nil); err != nil {
		t.Error(err)
	}
	report := h.SelfCheck(t.Context())
	if len(report.Findings) != 1 || report.Findings[0].Check != "catalog.undeclared" || report.Findings[0].Severity != SeverityWarning ||
		!strings.Contains(report.Findings[0].Message, "g/m") {
		t.Errorf("found %+v", report.Findings)
	}
	plugin := registered(t, Config{Plugins: []Extension{Plugin("acme", withMethods("acme", m))}, Table: table})
	if found := plugin.SelfCheck(t.Context()).Findings; len(found) != 0 {
		t.Errorf("as a plugin: %+v", found)
	}
}

func TestS2_213_TheLeasePortKeepsOffTheWorkersOwnLeases(t *testing.T) {
	t.Parallel()
	h, _ := hosted(t)
	leases := h.Context().Leases
	for _, name := range []string{"shard:1", "singleton:x", "scheduler/shard:1"} {
		if _, _, err := leases.Acquire(t.Context(), name, time.Minute); err == nil {
			t.Errorf("%s was given away", name)
		}
	}
	epoch, ok, err := leases.Acquire(t.Context(), "vault", time.Minute)
	if err != nil || !ok || epoch != 1 {
		t.Errorf("acquired at %d: %v, %v", epoch, ok, err)
	}
}
