package work

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
)

// The child's transactions may sit idle for much longer than its lease lasts: what keeps its
// successor waiting is then the fence's lock alone.
const (
	childTTL  = time.Second
	childIdle = 6 * time.Second
)

// child is a worker process that runs the key it finds, and stops at a place it is told:
// it prints a line, waits for one, and goes on.
func child(url string) int {
	ctx := context.Background()
	pool, err := store.Open(ctx, url)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer pool.Close()
	input := bufio.NewReader(os.Stdin)
	place := os.Getenv(childVariable + "_PLACE")
	wait := func(here string) {
		if here == place {
			fmt.Println(here)
			_, _ = input.ReadString('\n')
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	NewRunner(Config{
		Store: pool, Queue: NewQueue("child"), ID: "child", LeaseTTL: childTTL, FenceIdle: childIdle,
		Reconcilers: []Reconciler{{Name: "widgets", ShardBy: ShardNone, Run: func(_ context.Context, run *Run, key string) (string, error) {
			defer cancel()
			wait("before")
			// It ignores that its run is cancelled: only the fence is left to stop it.
			err := run.Tx(context.Background(), func(tx pgx.Tx) error {
				if err := effect(tx, "child", key, run.Epoch); err != nil {
					return err
				}
				wait("within")
				return nil
			})
			fmt.Printf("end: %v\n", err)
			return Done, err
		}}},
	}).Serve(ctx)
	return 0
}

func effect(tx pgx.Tx, worker, key string, epoch int64) error {
	_, err := tx.Exec(context.Background(), `INSERT INTO mesh.effects (worker, key, epoch) VALUES ($1, $2, $3)`, worker, key, epoch)
	return err
}

// A process is paused by SIGSTOP past its lease, inside a transaction that has fenced and
// written or just before it, and goes on after its successor has done the work. Without
// FOR SHARE in the fence the successor would not have waited, and the paused transaction
// would commit.
func TestS2_140_AWorkerPausedPastItsLeaseCannotCommit(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"within", "before"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			url := template.Database(t)
			b := &bench{Pool: open(t, url), t: t, queue: NewQueue("one"), log: &testenv.Buffer{}}
			b.enqueue("widgets", "a")

			process, say, lines := startChild(t, url, place)
			if line := <-lines; line != place {
				t.Fatalf("the child said %q", line)
			}
			pause(t, process)

			successor, epochs := make(chan struct{}, 1), make(chan int64, 1)
			config := b.config("one", Reconciler{Name: "widgets", ShardBy: ShardNone, Run: func(ctx context.Context, run *Run, key string) (string, error) {
				err := run.Tx(ctx, func(tx pgx.Tx) error { return effect(tx, "successor", key, run.Epoch) })
				if err == nil {
					epochs <- run.Epoch
					signal(successor)
				}
				return Done, err
			}})
			config.LeaseTTL = childTTL
			b.serve(config)
			select {
			case <-successor:
			case <-time.After(time.Minute):
				t.Fatal("the lease never passed on")
			}

			if err := process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(say)
			if end := <-lines; !strings.HasPrefix(end, "end: ") || end == "end: <nil>" {
				t.Errorf("the paused worker ended with %q, want an error", end)
			} else if place == "before" && !strings.Contains(end, ErrFenced.Error()) {
				t.Errorf("the paused worker ended with %q, want it fenced", end)
			}
			if n := one[int](b, `SELECT count(*) FROM mesh.effects WHERE worker = 'child'`); n != 0 {
				t.Errorf("the paused worker left %d rows", n)
			}
			if epoch := <-epochs; epoch != 2 {
				t.Errorf("the successor had epoch %d, want 2", epoch)
			}
		})
	}
}

func startChild(t *testing.T, url, place string) (*os.Process, io.Writer, <-chan string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childVariable+"="+url, childVariable+"_PLACE="+place)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 8)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	return cmd.Process, in, lines
}

// pause stops the process and waits until the kernel says so.
func pause(t *testing.T, process *os.Process) {
	t.Helper()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
}

// statements records what a connection is sent.
type statements struct{ seen chan string }

func (s statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.seen <- data.SQL
	return ctx
}

func (statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestS2_139_EveryTransactionBeginsByFencing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	trace := statements{seen: make(chan string, 1000)}
	config, err := pgxpool.ParseConfig(b.Pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = trace
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer traced.Close()
	runner := b.config("one", Reconciler{Name: "widgets", ShardBy: ShardNode, Run: func(ctx context.Context, run *Run, key string) (string, error) {
		for range 2 {
			if err := run.Tx(ctx, func(tx pgx.Tx) error { return effect(tx, "one", key, run.Epoch) }); err != nil {
				return "", err
			}
		}
		return Done, nil
	}})
	runner.Store = &store.Pool{Pool: traced}
	b.enqueue("widgets", "a")
	b.tick(NewRunner(runner), "widgets")
	close(trace.seen)
	transactions := 0
	for sql := range trace.seen {
		if !strings.HasPrefix(strings.ToLower(sql), "begin") {
			continue
		}
		transactions++
		if next := <-trace.seen; next != fenceSQL {
			t.Errorf("the first statement of transaction %d is %s", transactions, next)
		}
	}
	// Two of the run, and the one that settles its key.
	if transactions != 3 {
		t.Errorf("%d transactions, want 3", transactions)
	}
}

func TestS2_213_ANamedLeaseHasOneHolderAndAGrowingEpoch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a, z := NewLeases(b.Pool, "a", time.Minute), NewLeases(b.Pool, "z", time.Minute)
	acquire := func(l *Leases, want bool) int64 {
		t.Helper()
		epoch, ok, err := l.Acquire(t.Context(), "vault", time.Minute)
		if err != nil || ok != want {
			t.Fatalf("acquire by %s: %v, %v; want %v", l.holder, ok, err, want)
		}
		return epoch
	}
	first := acquire(a, true)
	acquire(z, false)
	if again := acquire(a, true); again != first {
		t.Errorf("renewing moved the epoch from %d to %d", first, again)
	}
	b.advance(2 * time.Minute)
	second := acquire(z, true)
	acquire(a, false)
	// What has passed on is not the former holder's to give back.
	if err := a.Release(t.Context(), "vault", first); err != nil {
		t.Fatal(err)
	}
	acquire(a, false)
	if err := z.Release(t.Context(), "vault", second); err != nil {
		t.Fatal(err)
	}
	third := acquire(a, true)
	if first >= second || second >= third {
		t.Errorf("epochs %d, %d, %d do not grow", first, second, third)
	}
}

func TestS2_214_FencingFailsTheStaleHoldersTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a, z := NewLeases(b.Pool, "a", time.Minute), NewLeases(b.Pool, "z", time.Minute)
	write := func(l *Leases, epoch int64) error {
		return Transact(t.Context(), b.Pool, func(tx pgx.Tx) error {
			if err := effect(tx, l.holder, "k", epoch); err != nil {
				return err
			}
			return l.Fence(t.Context(), tx, "vault", epoch)
		})
	}
	first, _, err := a.Acquire(t.Context(), "vault", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	b.advance(2 * time.Minute)
	// It has expired, but nobody took it: it is still the holder's.
	if err := write(a, first); err != nil {
		t.Fatal(err)
	}
	second, ok, err := z.Acquire(t.Context(), "vault", time.Minute)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := write(a, first); !errors.Is(err, ErrFenced) {
		t.Errorf("the stale holder's transaction ended with %v", err)
	}
	if err := write(z, second); err != nil {
		t.Error(err)
	}
	if n := one[int](b, `SELECT count(*) FROM mesh.effects WHERE worker = 'a'`); n != 1 {
		t.Errorf("the stale holder has %d rows, want the 1 from before", n)
	}
}

func TestS2_220_AfterCommitWaitsForTheOutermostCommit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ran := 0
	err := Transact(t.Context(), b.Pool, func(tx pgx.Tx) error {
		err := pgx.BeginFunc(t.Context(), tx, func(inner pgx.Tx) error {
			AfterCommit(inner, func() { ran++ })
			return nil
		})
		if ran != 0 {
			t.Error("it ran when the savepoint was released")
		}
		return err
	})
	if err != nil || ran != 1 {
		t.Fatalf("it ran %d times (%v), want once", ran, err)
	}
}

func TestS2_221_AfterCommitNeverRunsOnRollback(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ran, failure := 0, errors.New("no")
	hook := func() { ran++ }
	outer := Transact(t.Context(), b.Pool, func(tx pgx.Tx) error {
		AfterCommit(tx, hook)
		return failure
	})
	inner := Transact(t.Context(), b.Pool, func(tx pgx.Tx) error {
		err := pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
			AfterCommit(savepoint, hook)
			return failure
		})
		if !errors.Is(err, failure) {
			t.Error(err)
		}
		return nil
	})
	if !errors.Is(outer, failure) || inner != nil || ran != 0 {
		t.Fatalf("it ran %d times (%v, %v), want never", ran, outer, inner)
	}
}
