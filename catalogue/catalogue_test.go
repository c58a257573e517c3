package catalogue_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

var migrated = testenv.Migrated(catalogue.Migrate)

// running is a catalogue at work on a database of its own.
type running struct {
	t        *testing.T
	pool     *store.Pool
	registry *prometheus.Registry
	key      catalogue.Key
	service  *catalogue.Service
	end      func() // the catalogue, before its test ends
}

// start runs a catalogue that polls once an hour unless told otherwise: what a test sees is
// the answer to its own request, or to a watch.
func start(t *testing.T, change ...func(*catalogue.Config)) *running {
	t.Helper()
	return startOn(t, migrated.Database(t), change...)
}

func startOn(t *testing.T, url string, change ...func(*catalogue.Config)) *running {
	t.Helper()
	pool, err := store.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	key, err := catalogue.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	config := catalogue.Config{
		Key: key, Poll: time.Hour, Registry: registry,
		Source: source.Config{Dir: t.TempDir()},
		Log:    slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	for _, c := range change {
		c(&config)
	}
	service, err := catalogue.New(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	end := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		pool.Close()
	})
	t.Cleanup(end)
	return &running{t: t, pool: pool, registry: registry, key: config.Key, service: service, end: end}
}

// testWriter writes into the test's log for as long as the test runs.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func every(d time.Duration) func(*catalogue.Config) {
	return func(c *catalogue.Config) { c.Poll = d }
}

func (r *running) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func (r *running) add(url, ref string) {
	r.t.Helper()
	r.exec(`SELECT catalogue.request_add_repository($1, $2, '')`, url, ref)
}

func (r *running) refresh(url string) {
	r.t.Helper()
	r.exec(`SELECT catalogue.request_refresh_repository($1)`, url)
}

// eventually asks until the condition holds, and fails with what it last was.
func (r *running) eventually(what string, holds func() (bool, string)) {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		ok, was := holds()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: it is %s", what, was)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// at waits until the repository's recorded commit is hash.
func (r *running) at(url, hash string) {
	r.t.Helper()
	r.eventually("recorded commit of "+url, func() (bool, string) {
		x := r.repository(url)
		return x.Commit == hash && x.State == "ok", fmt.Sprintf("%+v, want commit %s", x, hash)
	})
}

// inState waits until the repository is in state.
func (r *running) inState(url, state string) repositoryRow {
	r.t.Helper()
	var x repositoryRow
	r.eventually("state of "+url, func() (bool, string) {
		x = r.repository(url)
		return x.State == state, fmt.Sprintf("%+v, want %s", x, state)
	})
	return x
}

type repositoryRow struct {
	State, Message, Commit, HeadRef, Ref string
	Modules                              int
	LastSuccess                          time.Time
}

func (r *running) repository(url string) repositoryRow {
	r.t.Helper()
	var x repositoryRow
	err := r.pool.QueryRow(r.t.Context(), `SELECT state, message, coalesce(commit, ''), coalesce(head_ref, ''), ref, modules,
coalesce(last_success, 'epoch') FROM catalogue.repositories WHERE url = $1`, url).
		Scan(&x.State, &x.Message, &x.Commit, &x.HeadRef, &x.Ref, &x.Modules, &x.LastSuccess)
	if err != nil {
		return repositoryRow{State: "unknown: " + err.Error()}
	}
	return x
}

type sourceRow struct {
	Module, Path, Commit, Tree, State, Error, URL string
	Holder, Document                              bool
}

func (r *running) sources() []sourceRow {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT s.module, s.path, s.commit, s.tree, s.state, s.error, r.url, s.holder, s.document IS NOT NULL
FROM catalogue.sources s JOIN catalogue.repositories r ON r.id = s.repository_id ORDER BY s.module, r.id, s.path`)
	if err != nil {
		r.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sourceRow])
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// source is the row that holds the name.
func (r *running) source(module string) sourceRow {
	r.t.Helper()
	for _, s := range r.sources() {
		if s.Module == module && s.Holder {
			return s
		}
	}
	r.t.Fatalf("nothing holds %q among %+v", module, r.sources())
	return sourceRow{}
}

// counter is the sum of a counter over its labels.
func (r *running) counter(name string) int {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() == name {
			for _, metric := range family.GetMetric() {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return int(sum)
}

// gauge is the value of a gauge under one label value.
func (r *running) gauge(name, label string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && len(metric.GetLabel()) == 1 && metric.GetLabel()[0].GetValue() == label {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// module is the smallest module.json of that name.
func module(name string) string { return fmt.Sprintf("{\n  \"name\": %q\n}\n", name) }

// many writes n modules m0 … into a repository.
func many(repo *testenv.Repo, n int) {
	for i := range n {
		repo.Write(fmt.Sprintf("modules/m%d/module.json", i), module(fmt.Sprintf("m%d", i)))
		repo.Write(fmt.Sprintf("modules/m%d/file", i), "one")
	}
}

func TestAddedRepositoryIsReadAndItsSourcesRecorded(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("module.json", module("root"))
	repo.Write("modules/db/module.json", module("db"))
	repo.Write("modules/db/config/x", "1")
	hash := repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	for name, path := range map[string]string{"root": "", "db": "modules/db"} {
		got := r.source(name)
		want := repo.Run("rev-parse", "HEAD:"+path)
		if got.Path != path || got.Commit != hash || got.Tree != want || got.State != "ok" || !got.Document {
			t.Errorf("source of %s is %+v, want path %q, commit %s, tree %s", name, got, path, hash, want)
		}
	}
	if x := r.repository(repo.URL()); x.HeadRef != "refs/heads/main" || x.Modules != 2 || x.Ref != "" {
		t.Errorf("repository is %+v", x)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "mesh-catalogue", "fetch-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
