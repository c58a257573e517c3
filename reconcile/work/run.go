package work

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/finish_delete.sql
	finishDeleteSQL string
	//go:embed sql/finish_move.sql
	finishMoveSQL string
)

// errPanic is what a run that panicked failed with.
var errPanic = errors.New("panic")

// run runs one claimed key and settles its row.
func (r *Runner) run(ctx context.Context, l *lane, c claim) {
	defer l.release(c.key)
	// The lease may have been lost while the key waited for its turn.
	if held, ok := r.member.holds(c.lease); !ok || held != c.held {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.held.ctx, cancel)()

	run := &Run{Shard: c.shard, Lease: c.lease, Epoch: c.held.epoch}
	if l.ShardBy == ShardNone {
		run.Shard = -1
	}
	run.Tx = func(ctx context.Context, fn func(tx pgx.Tx) error) error {
		return r.fenced(ctx, c, fn)
	}
	started := time.Now()
	outcome, err := guarded(ctx, l, run, c.key)
	// A run cut short by Stop or by a lost lease says nothing about its key, which stays due.
	if err != nil && ctx.Err() != nil || errors.Is(err, ErrFenced) {
		r.config.Observe(l.Name, "fenced", time.Since(started))
		return
	}
	if err == nil && outcome != Done && outcome != SyncAgain {
		err = fmt.Errorf("outcome %q is neither %s nor %s", outcome, Done, SyncAgain)
	}
	if err != nil {
		outcome = "error"
		r.config.Log.Warn("reconciler failed", "reconciler", l.Name, "key", c.key,
			"attempts", c.attempts+1, "error", err)
	}
	r.config.Observe(l.Name, outcome, time.Since(started))
	// The run is over and its effects stand: its row is settled even if Stop has begun.
	settling, done := context.WithTimeout(context.WithoutCancel(ctx), r.config.LeaseTTL)
	defer done()
	if err := r.finish(settling, l, c, outcome, err); err != nil {
		r.config.Log.Warn("work not settled", "reconciler", l.Name, "key", c.key, "error", err)
	}
}

// guarded turns a panic into an error with its stack.
func guarded(ctx context.Context, l *lane, run *Run, key string) (outcome string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
		}
	}()
	return l.Run(ctx, run, key)
}

// fenced is every transaction of a run: the fence comes first.
func (r *Runner) fenced(ctx context.Context, c claim, fn func(tx pgx.Tx) error) error {
	return Transact(ctx, r.config.Store, func(tx pgx.Tx) error {
		if err := r.leases.Fence(ctx, tx, c.lease, c.held.epoch); err != nil {
			return err
		}
		return fn(tx)
	})
}

// finish settles the key's row in one fenced transaction: it goes, if it is still at the
// generation that was run, or its due moves.
func (r *Runner) finish(ctx context.Context, l *lane, c claim, outcome string, failure error) error {
	var delay time.Duration
	var attempts int
	var message *string
	every, periodic := l.every(c.key)
	switch {
	case failure != nil:
		attempts = c.attempts + 1
		delay = Backoff(attempts)
		text := truncate(failure.Error(), 2000)
		message = &text
	case outcome == SyncAgain:
		delay = againAfter
	case periodic:
		delay = every
	}
	return r.fenced(ctx, c, func(tx pgx.Tx) error {
		if outcome == Done && !periodic {
			gone, err := tx.Exec(ctx, finishDeleteSQL, l.Name, c.key, c.generation)
			if err != nil || gone.RowsAffected() == 1 {
				return err
			}
		}
		_, err := tx.Exec(ctx, finishMoveSQL, l.Name, c.key, c.generation, delay, attempts, message)
		return err
	})
}

// truncate cuts at a rune's start and leaves out what PostgreSQL cannot store.
func truncate(s string, limit int) string {
	out := make([]rune, 0, min(len(s), limit))
	for _, r := range s {
		if len(out) == limit {
			break
		}
		if r != 0 {
			out = append(out, r)
		}
	}
	return string(out)
}
