package work

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

func idle(name, shardBy, role string) Reconciler {
	return Reconciler{Name: name, ShardBy: shardBy, Role: role,
		Run: func(context.Context, *Run, string) (string, error) { return Done, nil }}
}

// settled waits until the runners hold every shard of the role between them, and answers how
// many each holds.
func settled(t *testing.T, runners ...*Runner) []int {
	t.Helper()
	counts := make([]int, len(runners))
	eventually(t, "every shard was held by the one it falls to", func() bool {
		ids := make([]string, len(runners))
		for i, r := range runners {
			ids[i] = r.member.id
		}
		for i, r := range runners {
			held := r.member.shards()
			counts[i] = len(held)
			var want []int16
			for shard := range Shards {
				if Owner(ids, shard) == ids[i] {
					want = append(want, int16(shard))
				}
			}
			if !slices.Equal(held, want) {
				return false
			}
		}
		return true
	})
	return counts
}

func TestS2_126_AChangeOfWorkersMovesOnlyTheShardsItMust(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,8}-[0-9]{1,4}`), 2, 8, rapid.ID).Draw(t, "workers")
		gone := rapid.SampledFrom(workers).Draw(t, "gone")
		rest := slices.DeleteFunc(slices.Clone(workers), func(w string) bool { return w == gone })
		for shard := range Shards {
			before, after := Owner(workers, shard), Owner(rest, shard)
			if before != gone && before != after {
				t.Fatalf("the end of %s moved shard %d from %s to %s", gone, shard, before, after)
			}
		}
	})
}

func TestS2_126_AThirdWorkerTakesAThirdAndADeathMovesItsShards(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	start := func(id string) (*Runner, func()) {
		config := b.config(id, idle("widgets", ShardNode, ""))
		config.LeaseTTL = time.Second
		return b.serve(config)
	}
	first, _ := start("one")
	second, _ := start("two")
	settled(t, first, second)
	third, stop := start("three")
	for i, n := range settled(t, first, second, third) {
		// 256/3 = 85; four standard deviations of a fair draw are 30.
		if n < 55 || n > 115 {
			t.Errorf("worker %d holds %d of 256 shards", i, n)
		}
	}
	stop()
	settled(t, first, second)
}

func TestS2_125_AKeyRunsOnlyWhereItsShardsLeaseIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var mu sync.Mutex
	ran := map[string]string{}
	runners := map[string]*Runner{}
	for _, id := range []string{"one", "two"} {
		rec := Reconciler{Name: "widgets", ShardBy: ShardNode, Run: func(ctx context.Context, run *Run, key string) (string, error) {
			holder := one[string](b, `SELECT holder FROM mesh.lease_expiry WHERE name = $1`, run.Lease)
			if want := fmt.Sprintf("shard:%d", ShardOf(key)); run.Lease != want || holder != id {
				t.Errorf("%s ran %s under %s held by %s", id, key, run.Lease, holder)
			}
			mu.Lock()
			defer mu.Unlock()
			ran[key] = id
			return Done, nil
		}}
		runners[id] = NewRunner(b.config(id, rec))
	}
	for range 2 { // each learns of the other, gives back, and takes
		b.tick(runners["one"], "widgets")
		b.tick(runners["two"], "widgets")
	}
	keys := make([]string, 200)
	for i := range keys {
		keys[i] = fmt.Sprintf("node-%d", i)
		b.enqueue("widgets", keys[i])
	}
	b.drain("widgets", runners["one"], runners["two"])
	workers := map[string]int{}
	for _, id := range ran {
		workers[id]++
	}
	if len(ran) != len(keys) || len(workers) != 2 {
		t.Errorf("%d of %d keys ran, by %v; want all, by both", len(ran), len(keys), workers)
	}
}

func TestS2_129_ASingletonHasOneRunnerInTheMesh(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var mu sync.Mutex
	runs, now, holders := 0, 0, map[string]bool{}
	for _, id := range []string{"one", "two", "three"} {
		rec := Reconciler{Name: "widgets", ShardBy: ShardNone, Run: func(ctx context.Context, run *Run, key string) (string, error) {
			if run.Lease != "singleton:widgets" || run.Shard != -1 {
				t.Errorf("ran under %s, shard %d", run.Lease, run.Shard)
			}
			mu.Lock()
			runs, now, holders[id] = runs+1, now+1, true
			mu.Unlock()
			// Long enough for another process to begin, were it free to.
			_, _ = b.Exec(ctx, `SELECT pg_sleep(0.01)`)
			mu.Lock()
			now--
			mu.Unlock()
			return Done, nil
		}}
		config := b.config(id, rec)
		config.LeaseTTL, config.Concurrency = time.Second, 2
		b.serve(config)
	}
	for i := range 100 {
		b.enqueue("widgets", fmt.Sprint(i))
	}
	eventually(t, "the queue was empty", func() bool {
		return one[int](b, `SELECT count(*) FROM mesh.work`) == 0
	})
	mu.Lock()
	defer mu.Unlock()
	if runs != 100 || len(holders) != 1 {
		t.Errorf("%d runs by %v, want 100 by one worker", runs, slices.Collect(maps.Keys(holders)))
	}
}

func TestS2_132_133_SchedulersHaveTheirOwnMembershipAndLeases(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	recs := []Reconciler{idle("widgets", ShardNode, ""), idle("placer", ShardPool, RoleScheduler)}
	controllers := NewRunner(b.config("one", recs...))
	config := b.config("one", recs...)
	config.Role = RoleScheduler
	schedulers := NewRunner(config)
	b.tick(controllers, "widgets")
	b.tick(schedulers, "placer")
	rows, err := b.Query(t.Context(), `SELECT id FROM mesh.workers ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	workers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(workers, []string{"one", "scheduler/one"}) {
		t.Errorf("workers %v (%v)", workers, err)
	}
	for _, lease := range []string{"shard:7", "scheduler/shard:7"} {
		if holder := one[string](b, `SELECT holder FROM mesh.lease_expiry WHERE name = $1`, lease); holder != "one" {
			t.Errorf("lease %s is held by %q", lease, holder)
		}
	}
	if schedulers.Has("widgets") || controllers.Has("placer") {
		t.Error("a role runs another role's reconciler")
	}
}

func TestS2_131_ASchedulersKeysWaitForAScheduler(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	placer, keys := script("placer", Done)
	placer.Role, placer.ShardBy = RoleScheduler, ShardPool
	widgets, done := script("widgets", Done)
	b.enqueue("placer", "pool-1")
	b.enqueue("widgets", "a")
	_, stop := b.serve(b.config("one", placer, widgets))
	eventually(t, "the controllers' key was run", func() bool {
		return one[int](b, `SELECT count(*) FROM mesh.work WHERE kind = 'widgets'`) == 0
	})
	stop()
	if len(*keys) != 0 || len(*done) != 1 {
		t.Fatalf("controllers ran %v and %v", *keys, *done)
	}
	config := b.config("two", placer, widgets)
	config.Role = RoleScheduler
	b.tick(NewRunner(config), "placer")
	if !slices.Equal(*keys, []string{"pool-1"}) {
		t.Fatalf("the scheduler ran %v", *keys)
	}
}

func TestS2_134_ARoleWithoutAShardedReconcilerIsNoMember(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := b.config("one", idle("widgets", ShardNode, ""), idle("sweep", ShardNone, RoleScheduler))
	config.Role = RoleScheduler
	b.tick(NewRunner(config), "sweep")
	if n := one[int](b, `SELECT count(*) FROM mesh.workers`); n != 0 {
		t.Errorf("%d workers, want none", n)
	}
	if n := one[int](b, `SELECT count(*) FROM mesh.leases WHERE name LIKE '%shard:%'`); n != 0 {
		t.Errorf("%d shard leases, want none", n)
	}
}

func TestS2_141_TheRunKnowsItsShardAndLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ran := false
	r := b.runner(Reconciler{Name: "widgets", ShardBy: ShardNode, Run: func(ctx context.Context, run *Run, key string) (string, error) {
		ran = true
		epoch := one[int64](b, `SELECT epoch FROM mesh.leases WHERE name = $1`, run.Lease)
		if run.Shard != ShardOf(key) || run.Lease != fmt.Sprintf("shard:%d", run.Shard) || run.Epoch != epoch || epoch == 0 {
			t.Errorf("shard %d, lease %s at %d; the row says %d", run.Shard, run.Lease, run.Epoch, epoch)
		}
		return Done, nil
	}})
	b.enqueue("widgets", "node-1")
	b.tick(r, "widgets")
	if !ran {
		t.Error("nothing ran")
	}
}

func TestS2_142_StopCancelsTheRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	running := make(chan struct{})
	var once sync.Once
	_, stop := b.serve(b.config("one", Reconciler{Name: "widgets", ShardBy: ShardNone, Run: func(ctx context.Context, _ *Run, _ string) (string, error) {
		once.Do(func() { close(running) })
		<-ctx.Done()
		return "", ctx.Err()
	}}))
	b.enqueue("widgets", "a")
	<-running
	stop() // returns only when the run has
	row, ok := b.row("widgets", "a")
	if !ok || row.in > 0 || row.attempts != 0 {
		t.Errorf("after Stop the key is %+v, %v; want it due, without a failure", row, ok)
	}
	if holder := one[string](b, `SELECT holder FROM mesh.lease_expiry WHERE name = 'singleton:widgets'`); holder != "" {
		t.Errorf("the lease is still held by %s", holder)
	}
}

func TestS2_127_EveryNodeIsEnqueuedAtIntervalsWithJitter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var mu sync.Mutex
	at := map[string][]time.Time{}
	config := b.config("one", Reconciler{Name: "widgets", ShardBy: ShardNode, Run: func(_ context.Context, _ *Run, key string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		at[key] = append(at[key], time.Now())
		return Done, nil
	}})
	config.Resync = 200 * time.Millisecond
	config.Keys = func(_ context.Context, shardBy string) ([]string, error) {
		if shardBy != ShardNode {
			t.Errorf("asked for every %s", shardBy)
		}
		return []string{"n1", "n2"}, nil
	}
	started := time.Now()
	b.serve(config)
	eventually(t, "each node was resynced three times", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(at["n1"]) >= 3 && len(at["n2"]) >= 3
	})
	mu.Lock()
	defer mu.Unlock()
	// Never sooner than the interval; the upper bound is left to slow machines.
	if first := at["n1"][0].Sub(started); first < config.Resync {
		t.Errorf("the first resync came after %s, want at least %s", first, config.Resync)
	}
	if three := at["n1"][2].Sub(started); three < 3*config.Resync {
		t.Errorf("three resyncs took %s, want at least %s", three, 3*config.Resync)
	}
}

func TestS2_127_ResyncIntervalsAreFiveToTenMinutes(t *testing.T) {
	t.Parallel()
	every := withDefaults(Config{}).Resync
	if every != 5*time.Minute {
		t.Fatalf("the interval is %s", every)
	}
	low, high := time.Hour, time.Duration(0)
	for range 10_000 {
		wait := jittered(every)
		low, high = min(low, wait), max(high, wait)
	}
	if low < 5*time.Minute || low > 5*time.Minute+3*time.Second || high > 10*time.Minute || high < 10*time.Minute-3*time.Second {
		t.Errorf("waits between %s and %s, want 5 to 10 minutes", low, high)
	}
}

func TestS2_128_ALostRowHealsByTheResync(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, keys := script("widgets", Done)
	rec.ShardBy = ShardNode
	config := b.config("one", rec)
	config.Keys = func(context.Context, string) ([]string, error) { return []string{"n1"}, nil }
	r := NewRunner(config)
	b.enqueue("widgets", "n1")
	b.exec(`DELETE FROM mesh.work`)
	if b.tick(r, "widgets") != 0 {
		t.Fatal("a deleted row was run")
	}
	if err := r.Resync(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.tick(r, "widgets")
	if !slices.Equal(*keys, []string{"n1"}) {
		t.Errorf("ran %v", *keys)
	}
}

// A wake-up reaches another process long before that process polls.
func TestAnotherProcessIsWokenByNotification(t *testing.T) {
	t.Parallel()
	for _, hooked := range []bool{true, false} {
		t.Run(fmt.Sprintf("hooked=%v", hooked), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			ran := make(chan string, 10)
			runner := b.config("two", Reconciler{Name: "widgets", ShardBy: ShardNone, Run: func(_ context.Context, _ *Run, key string) (string, error) {
				ran <- key
				return Done, nil
			}})
			runner.Poll = time.Hour
			b.serve(runner)
			b.serve(b.config("one"))
			eventually(t, "the other process was listening", func() bool {
				return one[int](b, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`) == 1
			})
			// It sweeps once when it begins to listen; what comes after needs the wake-up.
			b.enqueue("widgets", "first")
			<-ran
			begin := b.Tx
			if hooked {
				begin = func(ctx context.Context, fn func(pgx.Tx) error) error { return Transact(ctx, b.Pool, fn) }
			}
			err := begin(t.Context(), func(tx pgx.Tx) error {
				return b.queue.Enqueue(t.Context(), tx, "widgets", "second", time.Time{})
			})
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-ran:
			case <-time.After(30 * time.Second):
				t.Fatal("not woken")
			}
		})
	}
}
