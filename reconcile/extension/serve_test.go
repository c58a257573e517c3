package extension

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
)

const pokeBody = `{"tenant":"t","widget":"w"}`

func TestS2_087_088_090_RoutesOfExtensionsAndPlugins(t *testing.T) {
	t.Parallel()
	plugin := func(id string) Extension {
		return Plugin(id, withMethods("", method("widgets", "list", "mesh:"+id+":list")))
	}
	h, pool := hostedWith(t, Config{
		Extensions: []Extension{withMethods("ours", method("widgets", "list", "mesh:ours:list"))},
		Plugins:    []Extension{plugin("acme"), plugin("other")},
	})
	server := serve(t, h, pool)
	for path, want := range map[string]int{
		"/api/mesh/widgets/list":               200,
		"/api/mesh/plugins/acme/widgets/list":  200,
		"/api/mesh/plugins/other/widgets/list": 200,
		"/api/mesh/acme/widgets/list":          404,
		"/api/mesh/plugins/ours/widgets/list":  404,
		"/api/mesh/widgets":                    404,
	} {
		if status, body := post(t, server, path, "secret", "{}"); status != want {
			t.Errorf("%s answers %d %s, want %d", path, status, body, want)
		}
	}
	for _, verb := range []string{"GET", "PUT", "DELETE"} {
		if status, _ := request(t, server, verb, "/api/mesh/widgets/list", "secret", "{}"); status != 405 {
			t.Errorf("%s answers %d", verb, status)
		}
	}
}

func TestABodyThatIsTooLargeOrNullIsToldAsThat(t *testing.T) {
	t.Parallel()
	h, pool := hostedWith(t, Config{Extensions: []Extension{widgets(nil)}})
	server := serve(t, h, pool)
	large := `{"tenant":"` + strings.Repeat("t", 20<<20) + `"}`
	if status, body := post(t, server, "/api/mesh/widgets/poke", "secret", large); status != 413 || !strings.Contains(body, "larger than 8 MiB") {
		t.Errorf("20 MB: %d %s", status, body)
	}
	if status, body := post(t, server, "/api/mesh/widgets/poke", "secret", " null "); status != 400 || !strings.Contains(body, "null is not an object") {
		t.Errorf("null: %d %s", status, body)
	}
}

func TestS2_088_APluginsMethodIsServedNowhereElse(t *testing.T) {
	t.Parallel()
	h, pool := hostedWith(t, Config{Plugins: []Extension{Plugin("acme", withMethods("", method("widgets", "list", "mesh:acme:list")))}})
	if status, _ := post(t, serve(t, h, pool), "/api/mesh/widgets/list", "secret", "{}"); status != 404 {
		t.Errorf("without plugins/acme it answers %d", status)
	}
}

func TestS2_089_TheBasePathMovesEveryRoute(t *testing.T) {
	t.Parallel()
	h, pool := hostedWith(t, Config{Extensions: []Extension{widgets(nil)}, BasePath: "/elsewhere"})
	server := serve(t, h, pool)
	for path, want := range map[string]int{"/elsewhere/widgets/poke": 200, "/api/mesh/widgets/poke": 404} {
		if status, _ := post(t, server, path, "secret", pokeBody); status != want {
			t.Errorf("%s answers %d, want %d", path, status, want)
		}
	}
}

func TestS2_041_BodiesAreReadStrictly(t *testing.T) {
	t.Parallel()
	h, pool := hosted(t, widgets(nil))
	server := serve(t, h, pool)
	for what, body := range map[string]string{
		"an unknown field":    `{"tenant":"t","widget":"w","wodget":"x"}`,
		"another case":        `{"Tenant":"t","widget":"w"}`,
		"a field given twice": `{"tenant":"t","widget":"w","widget":"x"}`,
		"another type":        `{"tenant":1,"widget":"w"}`,
		"two values":          pokeBody + pokeBody,
		"half a value":        `{"tenant":`,
		"a list":              `[]`,
	} {
		status, text := post(t, server, "/api/mesh/widgets/poke", "secret", body)
		var p problem
		if err := json.Unmarshal([]byte(text), &p); err != nil || status != 400 || p.Code != api.CodeInvalidInput || p.Status != 400 || p.Message == "" {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
	if n := count(t, pool, "widgets"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestS2_042_AHandlerSeesNoInputItsValidateRefused(t *testing.T) {
	t.Parallel()
	calls := 0
	e := widgets(func(context.Context, *MethodContext) error { calls++; return nil })
	inner := e.API
	e.API = func(c *Context) []Method {
		methods := inner(c)
		methods[0].Options.Validate = Valid(func(in widgetIn) error {
			if in.Widget == "bad" {
				return errors.New("widget: bad is no name")
			}
			return nil
		})
		return methods
	}
	h, pool := hosted(t, e)
	_, err := h.Invoke(t.Context(), admin, "widgets/poke", []byte(`{"tenant":"t","widget":"bad"}`))
	if e := (*api.Error)(nil); !errors.As(err, &e) || e.Code != api.CodeInvalidInput || calls != 0 || count(t, pool, "widgets") != 0 {
		t.Errorf("answered %v, handler called %d times", err, calls)
	}
	if _, err := h.Invoke(t.Context(), admin, "widgets/poke", []byte(pokeBody)); err != nil || calls != 1 {
		t.Errorf("good input: %v, handler called %d times", err, calls)
	}
}

func TestS2_043_204_205_AHandlersRowsEventsAndWorkCommitTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	for what, after := range map[string]func(ctx context.Context, c *MethodContext) error{
		"success":          nil,
		"error":            func(context.Context, *MethodContext) error { return errors.New("no") },
		"panic":            func(context.Context, *MethodContext) error { panic("no") },
		"failed statement": func(ctx context.Context, c *MethodContext) error { _, err := c.Tx.Exec(ctx, `SELECT 1/0`); return err },
		"refusal":          func(context.Context, *MethodContext) error { return &api.Error{Code: api.CodeConflict, Message: "no"} },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			hooks, inside := 0, 0
			h, pool := hosted(t, widgets(func(ctx context.Context, c *MethodContext) error {
				c.AfterCommit(c.Tx, func() { hooks++ })
				// What the handler has written is seen by nobody else yet.
				inside = count(t, c.Store, "widgets")
				if after == nil {
					return nil
				}
				return after(ctx, c)
			}))
			_, err := h.Invoke(t.Context(), admin, "widgets/poke", []byte(pokeBody))
			want := 1
			if after != nil {
				want = 0
			}
			if (err == nil) != (after == nil) {
				t.Errorf("answered %v", err)
			}
			if inside != 0 {
				t.Error("a row was visible before its commit")
			}
			rows, events, work := count(t, pool, "widgets"), count(t, pool, "outbox"), count(t, pool, "work")
			if rows != want || events != want || work != want || hooks != want {
				t.Errorf("%d rows, %d events, %d work items, %d hooks; want %d each", rows, events, work, hooks, want)
			}
		})
	}
}

func TestS2_040_201_CallersAreKnownAndDecidedOn(t *testing.T) {
	t.Parallel()
	var caller Caller
	h, pool := hosted(t, widgets(func(_ context.Context, c *MethodContext) error { caller = c.Caller; return nil }))
	server := serve(t, h, pool)
	for token, want := range map[string]int{"": 401, "wrong": 401} {
		status, text := post(t, server, "/api/mesh/widgets/poke", token, pokeBody)
		if status != want || !strings.Contains(text, api.CodeUnauthenticated) {
			t.Errorf("token %q: %d %s", token, status, text)
		}
	}
	err := pool.Tx(t.Context(), func(tx pgx.Tx) error {
		if err := PutOperator(t.Context(), tx, "reader", "readers"); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `UPDATE mesh.operators SET actions = '{mesh:widgets:read,mesh:*:show}' WHERE name = 'reader'`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if status, text := post(t, server, "/api/mesh/widgets/poke", "readers", pokeBody); status != 403 || !strings.Contains(text, "reader may not mesh:widgets:poke") {
		t.Errorf("a reader: %d %s", status, text)
	}
	if n := count(t, pool, "widgets"); n != 0 {
		t.Fatalf("%d rows by callers who may not", n)
	}
	if status, text := post(t, server, "/api/mesh/widgets/poke", "secret", pokeBody); status != 200 || text != `{"poked":"w"}`+"\n" {
		t.Errorf("the operator: %d %s", status, text)
	}
	if caller.Name != "admin" {
		t.Errorf("the handler saw %+v", caller)
	}
}

func TestTokensAreStoredAsHashes(t *testing.T) {
	t.Parallel()
	h, pool := hosted(t)
	serve(t, h, pool)
	var row string
	if err := pool.QueryRow(t.Context(), `SELECT o::text FROM mesh.operators o`).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(row, "secret") || strings.Contains(row, fmt.Sprintf("%x", "secret")) {
		t.Errorf("the row holds the token: %s", row)
	}
}

func TestErrorsThatAreNoRefusalsStayInside(t *testing.T) {
	t.Parallel()
	h, pool := hosted(t, widgets(func(context.Context, *MethodContext) error { return errors.New("password=hunter2") }))
	status, text := post(t, serve(t, h, pool), "/api/mesh/widgets/poke", "secret", pokeBody)
	if status != 500 || strings.Contains(text, "hunter2") || !strings.Contains(text, api.CodeInternal) {
		t.Errorf("answered %d %s", status, text)
	}
}

func TestQueriesCannotWriteAndLongPollsHoldNoTransaction(t *testing.T) {
	t.Parallel()
	call := func(name string, options Options, f func(ctx context.Context, c *MethodContext) error) Method {
		return Handle(api.Call[api.None, api.None]{Group: "g", Method: name, Action: "mesh:g:read", Kind: api.Query}, options,
			func(ctx context.Context, c *MethodContext, _ api.None) (api.None, error) {
				return api.None{}, f(ctx, c)
			})
	}
	e := withMethods("g",
		call("write", Options{}, func(ctx context.Context, c *MethodContext) error {
			_, err := c.Tx.Exec(ctx, `DELETE FROM mesh.operators`)
			return err
		}),
		call("wait", Options{LongPoll: true}, func(_ context.Context, c *MethodContext) error {
			if c.Tx != nil {
				t.Error("a long poll holds a transaction")
			}
			return nil
		}))
	h, pool := hosted(t, e)
	server := serve(t, h, pool)
	if status, _ := post(t, server, "/api/mesh/g/write", "secret", ""); status != 500 || count(t, pool, "operators") != 1 {
		t.Errorf("a query that writes answers %d", status)
	}
	if status, text := post(t, server, "/api/mesh/g/wait", "secret", ""); status != 200 {
		t.Errorf("a long poll answers %d %s", status, text)
	}
}

func TestMetricsCountCallsAndRuns(t *testing.T) {
	t.Parallel()
	e := widgets(nil)
	e.Reconcilers = withReconciler("x", Reconciler{Name: "widgets", ShardBy: ShardNone}).Reconcilers
	h, pool := hosted(t, e)
	server := serve(t, h, pool)
	post(t, server, "/api/mesh/widgets/poke", "secret", pokeBody)
	if _, err := h.Tick(t.Context(), "widgets"); err != nil {
		t.Fatal(err)
	}
	_, text := request(t, server, "GET", "/metrics", "", "")
	for _, want := range []string{
		`mesh_method_seconds_count{code="OK",method="widgets/poke"} 1`,
		`mesh_reconcile_seconds_count{outcome="DONE",reconciler="widgets"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}
