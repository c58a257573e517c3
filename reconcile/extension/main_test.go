package extension

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/api"
)

func TestMain(m *testing.M) { testenv.Run(m) }

func openStore(t testing.TB, url string) *store.Pool {
	t.Helper()
	pool, err := store.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// hosted is an initialised host of the extensions, without workers, on a database of its own.
func hosted(t testing.TB, extensions ...Extension) (*Host, *store.Pool) {
	t.Helper()
	return hostedWith(t, Config{Extensions: extensions})
}

func hostedWith(t testing.TB, config Config) (*Host, *store.Pool) {
	t.Helper()
	config.Store = openStore(t, testenv.Database(t))
	config.Manual = true
	h := registered(t, config)
	if err := h.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return h, config.Store
}

func registered(t testing.TB, config Config) *Host {
	t.Helper()
	if config.Log == nil {
		config.Log = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	h, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// refusal registers the extensions and answers the words of the refusal.
func refusal(t testing.TB, config Config) string {
	t.Helper()
	_, err := New(config)
	if err == nil {
		return ""
	}
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeInvalidConfig {
		t.Fatalf("%T %v, want INVALID_CONFIG", err, err)
	}
	return e.Message
}

func refused(t testing.TB, e Extension) bool {
	t.Helper()
	return refusal(t, Config{Extensions: []Extension{e}}) != ""
}

var admin = Caller{Name: "admin", Actions: []string{"mesh:*:*"}}

// widgetIn and the rest are the methods of the extension most tests host.
type widgetIn struct {
	Tenant string `json:"tenant"`
	Widget string `json:"widget"`
}

type widgetOut struct {
	Poked string `json:"poked"`
}

var poke = api.Call[widgetIn, widgetOut]{Group: "widgets", Method: "poke", Action: "mesh:widgets:poke", Kind: api.Mutation}

const widgetsSQL = `CREATE TABLE mesh.widgets (id text PRIMARY KEY, tenant text NOT NULL, created_at timestamptz NOT NULL DEFAULT mesh.mesh_now())`

// widgets is an extension with one table and one method; after, if set, runs in its handler
// once everything is written.
func widgets(after func(ctx context.Context, c *MethodContext) error) Extension {
	return Extension{
		Name:       "widgets",
		Catalog:    Catalog{Actions: []string{poke.Action, "mesh:widgets:read"}},
		Migrations: []store.Migration{{Name: "widgets/0001_widgets", SQL: widgetsSQL}},
		API: func(*Context) []Method {
			return []Method{Handle(poke, Options{}, func(ctx context.Context, c *MethodContext, in widgetIn) (widgetOut, error) {
				if _, err := c.Tx.Exec(ctx, `INSERT INTO mesh.widgets (id, tenant) VALUES ($1, $2)`, in.Widget, in.Tenant); err != nil {
					return widgetOut{}, err
				}
				if err := c.Events.Publish(ctx, c.Tx, Event{Type: "widget-poked", Subject: "widget/" + in.Widget, Data: in}); err != nil {
					return widgetOut{}, err
				}
				if err := c.Work.Enqueue(ctx, c.Tx, "widgets", in.Tenant, time.Time{}); err != nil {
					return widgetOut{}, err
				}
				if after != nil {
					if err := after(ctx, c); err != nil {
						return widgetOut{}, err
					}
				}
				return widgetOut{Poked: in.Widget}, nil
			})}
		},
	}
}

func count(t testing.TB, pool *store.Pool, table string) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM mesh.`+pgx.Identifier{table}.Sanitize()).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// serve serves the host over HTTP with one operator, whose token is "secret".
func serve(t testing.TB, h *Host, pool *store.Pool) *httptest.Server {
	t.Helper()
	err := pool.Tx(t.Context(), func(tx pgx.Tx) error { return PutOperator(t.Context(), tx, "admin", "secret") })
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h.Handler(Operators{Store: pool}))
	t.Cleanup(server.Close)
	return server
}

// post sends body and answers the status and the body.
func post(t testing.TB, server *httptest.Server, path, token, body string) (int, string) {
	t.Helper()
	return request(t, server, http.MethodPost, path, token, body)
}

func request(t testing.TB, server *httptest.Server, method, path, token, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var text strings.Builder
	if _, err := io.Copy(&text, res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, text.String()
}

// journal is an ordered list that several goroutines write.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) add(entry string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.entries, " ")
}
