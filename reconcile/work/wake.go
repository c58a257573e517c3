package work

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// listen wakes this process when another one, or a transaction without hooks, enqueues. It
// has a connection of its own. It listens first and sweeps then: a notification sent between
// would be missed the other way round.
func (r *Runner) listen(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.listenOnce(ctx); err != nil && ctx.Err() == nil {
			r.config.Log.Warn("not listening for work; polling goes on", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.config.Poll):
		}
	}
}

func (r *Runner) listenOnce(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, r.config.Store.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	r.config.Queue.pokeAll()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if n.Payload != r.config.ID {
			r.config.Queue.pokeAll()
		}
	}
}

// notify tells other processes, after the commit and however many commits there were since
// the last time: notifying inside them would serialise them.
func (r *Runner) notify(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.config.Queue.tell:
		}
		if _, err := r.config.Store.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, r.config.ID); err != nil && ctx.Err() == nil {
			r.config.Log.Debug("workers not notified; they poll", "error", err)
		}
	}
}

// resync enqueues every node and pool of the shards held, at intervals of Resync and as much
// jitter again, so that a wake-up that was lost heals.
func (r *Runner) resync(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(jittered(r.config.Resync)):
		}
		if err := r.Resync(ctx); err != nil && ctx.Err() == nil {
			r.config.Log.Warn("resync failed", "error", err)
		}
	}
}

// jittered is every, plus a random part of as much again.
func jittered(every time.Duration) time.Duration { return every + rand.N(every) }

// Resync enqueues every node and pool of the shards held, now.
func (r *Runner) Resync(ctx context.Context) error {
	mine := map[int]bool{}
	for _, shard := range r.member.shards() {
		mine[int(shard)] = true
	}
	byKind := map[string][]string{}
	for _, l := range r.lanes {
		if l.ShardBy == ShardNone || r.config.Keys == nil {
			continue
		}
		if _, ok := byKind[l.ShardBy]; ok {
			continue
		}
		keys, err := r.config.Keys(ctx, l.ShardBy)
		if err != nil {
			return fmt.Errorf("list every %s: %w", l.ShardBy, err)
		}
		byKind[l.ShardBy] = filter(keys, mine)
	}
	for _, l := range r.lanes {
		keys := byKind[l.ShardBy]
		err := Transact(ctx, r.config.Store, func(tx pgx.Tx) error {
			return r.config.Queue.EnqueueMany(ctx, tx, l.Name, keys)
		})
		if err != nil {
			return fmt.Errorf("resync %s: %w", l.Name, err)
		}
	}
	return nil
}

func filter(keys []string, mine map[int]bool) []string {
	kept := []string{}
	for _, key := range keys {
		if mine[ShardOf(key)] {
			kept = append(kept, key)
		}
	}
	return kept
}
