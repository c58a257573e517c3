package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestS2_110_EnqueuingAReconcilersNameWakesIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, keys := script("widgets", Done)
	other, others := script("gadgets", Done)
	r := b.runner(rec, other)
	b.enqueue("widgets", "a")
	if n := b.tick(r, "gadgets"); n != 0 {
		t.Fatalf("another reconciler ran %d keys", n)
	}
	b.tick(r, "widgets")
	if !slices.Equal(*keys, []string{"a"}) || len(*others) != 0 {
		t.Fatalf("ran %v and %v", *keys, *others)
	}
}

func TestS2_114_KeysHaveOneTo512Characters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.enqueue("widgets", strings.Repeat("é", 512))
	for _, key := range []string{"", strings.Repeat("é", 513)} {
		err := b.Tx(t.Context(), func(tx pgx.Tx) error {
			return b.queue.Enqueue(t.Context(), tx, "widgets", key, time.Time{})
		})
		if err == nil {
			t.Errorf("a key of %d bytes was accepted", len(key))
		}
	}
	if n := one[int](b, `SELECT count(*) FROM mesh.work`); n != 1 {
		t.Fatalf("%d rows, want 1", n)
	}
}

func TestS2_115_EnqueuingAgainRaisesTheGenerationOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 250 {
				b.enqueue("widgets", "a")
			}
		})
	}
	writers.Wait()
	if n := one[int](b, `SELECT count(*) FROM mesh.work`); n != 1 {
		t.Fatalf("%d rows, want 1", n)
	}
	if r, _ := b.row("widgets", "a"); r.generation != 1000 {
		t.Fatalf("generation %d, want 1000", r.generation)
	}
}

// dirtied runs a key once, enqueues it while it runs, and answers its row afterwards.
func dirtied(t *testing.T, answer any) (b *bench, r *Runner, keys *[]string) {
	t.Helper()
	b = newBench(t)
	rec, keys := script("widgets", answer, Done)
	inner := rec.Run
	var once sync.Once
	rec.Run = func(ctx context.Context, run *Run, key string) (string, error) {
		once.Do(func() { b.enqueue("widgets", "a") })
		return inner(ctx, run, key)
	}
	r = b.runner(rec)
	b.enqueue("widgets", "a")
	b.tick(r, "widgets")
	return b, r, keys
}

func TestS2_116_ARunRemovesTheKeyOnlyAtItsGeneration(t *testing.T) {
	t.Parallel()
	b, r, _ := dirtied(t, Done)
	if row, ok := b.row("widgets", "a"); !ok || row.generation != 2 {
		t.Fatalf("after the run: %+v, %v; want the row at generation 2", row, ok)
	}
	b.tick(r, "widgets")
	if _, ok := b.row("widgets", "a"); ok {
		t.Fatal("a run at the row's generation left it")
	}
}

func TestS2_117_AKeyDirtiedWhileItRunsIsRunAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]any{
		"DONE": Done, "SYNC_AGAIN": SyncAgain, "error": errors.New("broken"), "panic": 1,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, r, keys := dirtied(t, answer)
			// The clock stands: what is run now was not put off.
			b.tick(r, "widgets")
			if len(*keys) != 2 {
				t.Fatalf("ran %d times, want 2", len(*keys))
			}
		})
	}
}

func TestS2_118_DoneRemovesTheKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, _ := script("widgets", Done)
	b.enqueue("widgets", "a")
	b.tick(b.runner(rec), "widgets")
	if _, ok := b.row("widgets", "a"); ok {
		t.Fatal("the key is still queued")
	}
}

func TestS2_120_SyncAgainIsDueInOneSecondEachTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, keys := script("widgets", SyncAgain)
	r := b.runner(rec)
	b.enqueue("widgets", "a")
	for run := 1; run <= 3; run++ {
		b.tick(r, "widgets")
		if len(*keys) != run {
			t.Fatalf("ran %d times, want %d", len(*keys), run)
		}
		b.dueIn("widgets", "a", time.Second)
		b.advance(time.Second)
	}
}

func TestS2_121_ErrorsAndPanicsBackOffFromOneSecondToFiveMinutes(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]any{"error": errors.New("broken"), "panic": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			rec, _ := script("widgets", answer)
			r := b.runner(rec)
			b.enqueue("widgets", "a")
			for _, seconds := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
				if n := b.tick(r, "widgets"); n != 1 {
					t.Fatalf("ran %d keys before the wait of %d s", n, seconds)
				}
				b.dueIn("widgets", "a", time.Duration(seconds)*time.Second)
				b.advance(time.Duration(seconds) * time.Second)
			}
		})
	}
}

func TestS2_122_AnErrorIsOneWarning(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, _ := script("widgets", errors.New("broken"))
	b.enqueue("widgets", "a")
	b.tick(b.runner(rec), "widgets")
	lines := b.log.Lines()
	if len(lines) != 1 {
		t.Fatalf("logged %q, want one record", lines)
	}
	for _, want := range []string{"level=WARN", "reconciler=widgets", "key=a", "error=broken"} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("%q lacks %s", lines[0], want)
		}
	}
}

func TestS2_123_AfterAGoodRunTheBackoffBeginsAnew(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, good := range []string{Done, SyncAgain} {
		t.Run(good, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			rec, _ := script("widgets", broken, broken, good, broken)
			r := b.runner(rec)
			for range 4 {
				// An enqueue makes the key due; it does not end the back-off by itself.
				b.enqueue("widgets", "a")
				b.tick(r, "widgets")
			}
			b.dueIn("widgets", "a", time.Second)
		})
	}
}

func TestS2_123_AGoodRunOfADirtiedKeyEndsTheBackoffToo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	broken := errors.New("broken")
	rec, _ := script("widgets", broken, broken, Done, broken)
	inner, runs := rec.Run, 0
	rec.Run = func(ctx context.Context, run *Run, key string) (string, error) {
		if runs++; runs == 3 {
			b.enqueue("widgets", "a")
		}
		return inner(ctx, run, key)
	}
	r := b.runner(rec)
	for range 3 {
		b.enqueue("widgets", "a")
		b.tick(r, "widgets")
	}
	b.tick(r, "widgets")
	b.dueIn("widgets", "a", time.Second)
}

func TestS2_124_ShardsAreFNV1aModulo256(t *testing.T) {
	t.Parallel()
	// Offset basis, and the published vectors of 32-bit FNV-1a, modulo 256.
	for key, want := range map[string]int{"": 0xc5, "a": 0x2c, "b": 0xe5, "foobar": 0x68} {
		if got := ShardOf(key); got != want {
			t.Errorf("shard of %q is %#x, want %#x", key, got, want)
		}
	}
	b := newBench(t)
	b.enqueue("widgets", "foobar")
	if got := one[int](b, `SELECT shard FROM mesh.work`); got != 0x68 {
		t.Errorf("stored shard %#x, want 0x68", got)
	}
}

func TestS2_119_APeriodicKeyIsDueOnePeriodAfterItsRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, keys := script("widgets", Done)
	rec.Periodic = []Periodic{{Key: "sweep", Every: 10 * time.Minute}}
	r := b.runner(rec)
	b.tick(r, "widgets")
	b.dueIn("widgets", "sweep", 10*time.Minute)
	// Late by four minutes: the next is counted from this run, not from the seed.
	b.advance(14 * time.Minute)
	b.tick(r, "widgets")
	b.dueIn("widgets", "sweep", 10*time.Minute)
	if len(*keys) != 2 {
		t.Fatalf("ran %d times, want 2", len(*keys))
	}
}

func TestS2_136_APeriodicKeyIsSeededOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, _ := script("widgets", Done)
	rec.Periodic = []Periodic{{Key: "sweep", Every: 10 * time.Minute}}
	b.tick(b.runner(rec), "widgets")
	before, _ := b.row("widgets", "sweep")
	for _, id := range []string{"one", "two", "three"} {
		b.tick(NewRunner(b.config(id, rec)), "widgets")
	}
	after, _ := b.row("widgets", "sweep")
	if !before.due.Equal(after.due) || after.generation != before.generation {
		t.Fatalf("restarts moved the row from %+v to %+v", before, after)
	}
	if n := one[int](b, `SELECT count(*) FROM mesh.work`); n != 1 {
		t.Fatalf("%d rows, want 1", n)
	}
}

func TestS2_138_EdgesOfAPeriodicKeyAreServedBesidesItsPeriod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, keys := script("widgets", Done)
	rec.Periodic = []Periodic{{Key: "sweep", Every: 10 * time.Minute}}
	r := b.runner(rec)
	b.tick(r, "widgets")
	b.advance(3 * time.Minute)
	b.enqueue("widgets", "sweep")
	b.tick(r, "widgets")
	if len(*keys) != 2 {
		t.Fatalf("ran %d times, want 2", len(*keys))
	}
	b.dueIn("widgets", "sweep", 10*time.Minute)
}

func TestS2_204_NotBeforeAndRollback(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, keys := script("widgets", Done)
	r := b.runner(rec)
	b.enqueueAt("widgets", "a", time.Now().Add(time.Hour))
	if n := b.tick(r, "widgets"); n != 0 {
		t.Fatal("ran before its time")
	}
	failure := errors.New("rolled back")
	err := Transact(t.Context(), b.Pool, func(tx pgx.Tx) error {
		if err := b.queue.EnqueueMany(t.Context(), tx, "widgets", []string{"b", "c"}); err != nil {
			t.Error(err)
		}
		return failure
	})
	if !errors.Is(err, failure) || b.tick(r, "widgets") != 0 {
		t.Fatalf("a rolled back enqueue was run (%v)", err)
	}
	b.advance(time.Hour)
	b.tick(r, "widgets")
	if !slices.Equal(*keys, []string{"a"}) {
		t.Fatalf("ran %v, want a alone", *keys)
	}
}

func TestS2_204_AnEdgeBringsDueForwardAndNeverBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.enqueueAt("widgets", "a", time.Now().Add(time.Hour))
	b.enqueueAt("widgets", "a", time.Now().Add(2*time.Hour))
	b.dueIn("widgets", "a", time.Hour)
	b.enqueue("widgets", "a")
	b.dueIn("widgets", "a", 0)
}

func TestS2_163_TickDrainsTheQueueWhileNoClockMoves(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rec, keys := script("widgets", Done)
	rec.ShardBy = ShardNode
	r := b.runner(rec)
	var all []string
	for i := range 600 {
		all = append(all, fmt.Sprintf("node-%d", i))
	}
	err := Transact(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return b.queue.EnqueueMany(t.Context(), tx, "widgets", all)
	})
	if err != nil {
		t.Fatal(err)
	}
	b.drain("widgets", r)
	slices.Sort(*keys)
	slices.Sort(all)
	if !slices.Equal(*keys, all) {
		t.Fatalf("ran %d keys, want each of %d once", len(*keys), len(all))
	}
}

// It runs alone: an open transaction in any database of the server, and fence_test.go keeps
// one, holds back what may be pruned in all of them.
func TestCoalescingLeavesASmallTable(t *testing.T) {
	b := newBench(t)
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf("node-%d", i)
	}
	var writers sync.WaitGroup
	for writer := range 4 {
		writers.Go(func() {
			for i := range 500 {
				from := (i*50 + writer*250) % len(keys)
				err := Transact(t.Context(), b.Pool, func(tx pgx.Tx) error {
					return b.queue.EnqueueMany(t.Context(), tx, "widgets", keys[from:from+50])
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	if n := one[int](b, `SELECT sum(generation) FROM mesh.work`); n != 100_000 {
		t.Fatalf("%d enqueues counted, want 100000", n)
	}
	full := one[int](b, `SELECT pg_total_relation_size('mesh.work')`)
	rec, _ := script("widgets", Done)
	r := b.runner(rec)
	b.drain("widgets", r)
	b.exec(`VACUUM mesh.work`)
	heap := one[int](b, `SELECT pg_relation_size('mesh.work')`)
	t.Logf("%d bytes with indexes after 100,000 enqueues, heap of %d bytes after the drain", full, heap)
	if full > 2<<20 {
		t.Errorf("%d bytes after 100,000 enqueues of 1,000 keys, want under 2 MiB", full)
	}
	if heap > 64<<10 {
		t.Errorf("%d bytes after the drain, want under 64 KiB", heap)
	}
}
