package work

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
)

// childVariable makes this binary a worker process; see fence_test.go.
const childVariable = "MESH_WORK_TEST_CHILD"

func TestMain(m *testing.M) {
	if url := os.Getenv(childVariable); url != "" {
		os.Exit(child(url))
	}
	testenv.Run(m)
}

// template is a migrated database whose clock tests can move.
var template = testenv.Migrated(func(ctx context.Context, pool *store.Pool) error {
	if err := store.Migrate(ctx, pool, "mesh", Migrations()); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `
CREATE TABLE mesh.test_clock (ahead interval NOT NULL);
INSERT INTO mesh.test_clock VALUES ('0');
CREATE OR REPLACE FUNCTION mesh.mesh_now() RETURNS timestamptz LANGUAGE sql STABLE
  AS $$ SELECT pg_catalog.statement_timestamp() + (SELECT ahead FROM mesh.test_clock) $$;
CREATE TABLE mesh.effects (id bigserial PRIMARY KEY, worker text, key text, epoch bigint);`)
	return err
})

func open(t testing.TB, url string) *store.Pool {
	t.Helper()
	pool, err := store.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// bench is one database with one process's queue and the log of its runners.
type bench struct {
	*store.Pool
	t     testing.TB
	queue *Queue
	log   *testenv.Buffer
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return &bench{Pool: open(t, template.Database(t)), t: t, queue: NewQueue("one"), log: &testenv.Buffer{}}
}

// runner makes a runner for Tick.
func (b *bench) runner(reconcilers ...Reconciler) *Runner {
	return NewRunner(b.config("one", reconcilers...))
}

func (b *bench) config(id string, reconcilers ...Reconciler) Config {
	queue := b.queue
	if id != "one" {
		queue = NewQueue(id)
	}
	return Config{
		Store: b.Pool, Queue: queue, ID: id, Reconcilers: reconcilers,
		Log: slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// serve runs a runner until the test ends, or stop is called.
func (b *bench) serve(config Config) (r *Runner, stop func()) {
	b.t.Helper()
	r = NewRunner(config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Serve(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	b.t.Cleanup(stop)
	return r, stop
}

func (b *bench) enqueue(kind, key string) {
	b.t.Helper()
	b.enqueueAt(kind, key, time.Time{})
}

func (b *bench) enqueueAt(kind, key string, at time.Time) {
	b.t.Helper()
	err := Transact(b.t.Context(), b.Pool, func(tx pgx.Tx) error {
		return b.queue.Enqueue(b.t.Context(), tx, kind, key, at)
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) tick(r *Runner, name string) int {
	b.t.Helper()
	n, err := r.Tick(b.t.Context(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// advance moves the database's clock.
func (b *bench) advance(by time.Duration) {
	b.t.Helper()
	b.exec(`UPDATE mesh.test_clock SET ahead = ahead + $1`, by)
}

// drain ticks until nothing is due, and fails where that takes more than a few batches.
func (b *bench) drain(name string, runners ...*Runner) {
	b.t.Helper()
	for range 20 {
		ran := 0
		for _, r := range runners {
			ran += b.tick(r, name)
		}
		if ran == 0 {
			return
		}
	}
	b.t.Fatal("the queue is never empty")
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// row is a key of the queue; in is how far its due lies ahead.
type row struct {
	generation int64
	in         time.Duration
	attempts   int
	lastError  string
	due        time.Time
}

func (b *bench) row(kind, key string) (r row, ok bool) {
	b.t.Helper()
	err := b.QueryRow(b.t.Context(), `
SELECT generation, due - mesh.mesh_now(), attempts, coalesce(last_error, ''), due
FROM mesh.work WHERE kind = $1 AND key = $2`, kind, key).Scan(&r.generation, &r.in, &r.attempts, &r.lastError, &r.due)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, false
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return r, true
}

// dueIn fails unless the key is due about as far ahead as said.
func (b *bench) dueIn(kind, key string, want time.Duration) {
	b.t.Helper()
	r, ok := b.row(kind, key)
	if !ok {
		b.t.Fatalf("%s %s is not queued, want due in %s", kind, key, want)
	}
	// The row is read after it was written: a slow machine makes it look earlier.
	if r.in > want || r.in < want-900*time.Millisecond {
		b.t.Fatalf("%s %s is due in %s, want %s", kind, key, r.in, want)
	}
}

func one[T any](b *bench, sql string, args ...any) T {
	b.t.Helper()
	var v T
	if err := b.QueryRow(b.t.Context(), sql, args...).Scan(&v); err != nil {
		b.t.Fatal(err)
	}
	return v
}

// eventually polls until ok, and fails the test after a minute.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("it never came about that %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// script is a reconciler that answers from a list, the last answer again and again.
func script(name string, answers ...any) (Reconciler, *[]string) {
	var mu sync.Mutex
	keys := &[]string{}
	n := 0
	return Reconciler{Name: name, ShardBy: ShardNone, Run: func(_ context.Context, _ *Run, key string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		*keys = append(*keys, key)
		answer := answers[min(n, len(answers)-1)]
		n++
		switch a := answer.(type) {
		case error:
			return "", a
		case string:
			return a, nil
		}
		panic(fmt.Sprint(answer))
	}}, keys
}
