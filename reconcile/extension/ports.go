package extension

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/work"
)

// portIdle bounds how long a transaction fenced through the Leases port may sit idle.
const portIdle = 15 * time.Second

func (h *Host) newContext() *Context {
	return &Context{
		Store:        h.config.Store,
		Work:         h.queue,
		Events:       outbox{},
		Desired:      desired{h.queue},
		Leases:       namedLeases{h.leases},
		Clock:        h.clock,
		Log:          h.config.Log,
		Transact:     h.transact,
		AfterCommit:  work.AfterCommit,
		Sections:     h.Sections,
		HandleReport: h.HandleReport,
		Hosted:       h.hosted,
	}
}

// desired wakes the composer of one node's declaration.
type desired struct{ work Work }

func (d desired) Invalidate(ctx context.Context, tx pgx.Tx, node string) error {
	return d.work.Enqueue(ctx, tx, ComposeKind, node, time.Time{})
}

// namedLeases keeps extensions away from the names the workers' own leases have.
type namedLeases struct{ *work.Leases }

func (l namedLeases) Acquire(ctx context.Context, name string, ttl time.Duration) (int64, bool, error) {
	for _, prefix := range []string{"shard:", "singleton:", RoleScheduler + "/"} {
		if strings.HasPrefix(name, prefix) {
			return 0, false, fmt.Errorf("acquire lease %s: names beginning with %s are the workers' own", name, prefix)
		}
	}
	return l.Leases.Acquire(ctx, name, ttl)
}

// clock carries the database's time on by the monotonic clock.
type clock struct {
	mu   sync.Mutex
	base time.Time // the database's
	at   time.Time // ours, with its monotonic reading
}

func (c *clock) anchor(ctx context.Context, pool *store.Pool) error {
	var base time.Time
	before := time.Now()
	if err := pool.QueryRow(ctx, `SELECT mesh.mesh_now()`).Scan(&base); err != nil {
		return fmt.Errorf("anchor clock: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The answer's time lies between asking and getting it.
	c.base, c.at = base, before.Add(time.Since(before)/2)
	return nil
}

// Now is business time. Before Initialize it is the process's.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return time.Now()
	}
	return c.base.Add(time.Since(c.at))
}
