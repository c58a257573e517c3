package work

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// The outcomes of a run.
const (
	Done      = "DONE"
	SyncAgain = "SYNC_AGAIN"
)

// How keys are spread over workers.
const (
	ShardNode = "node"
	ShardPool = "pool"
	ShardNone = "none"
)

// The roles of workers.
const (
	RoleControllers = "controllers"
	RoleScheduler   = "scheduler"
)

// The waits after a run: after SYNC_AGAIN, and after errors (doubling up to the limit).
const (
	againAfter   = time.Second
	backoffFirst = time.Second
	backoffLimit = 5 * time.Minute
)

// Reconciler is what runs the keys of the kind that is its name. Run must bear being run
// twice for one key.
type Reconciler struct {
	Name     string
	ShardBy  string
	Role     string // "" is RoleControllers
	Periodic []Periodic
	Run      func(ctx context.Context, run *Run, key string) (string, error)
}

// Periodic is a key seeded once that comes back Every after each run.
type Periodic struct {
	Key   string
	Every time.Duration
}

// Run is one run of a reconciler: the lease it runs under and its way to transactions.
type Run struct {
	Shard int // -1 where ShardBy is none
	Lease string
	Epoch int64
	// Tx runs fn in a transaction that begins by fencing the lease.
	Tx func(ctx context.Context, fn func(tx pgx.Tx) error) error
}

func (r Reconciler) role() string {
	if r.Role == "" {
		return RoleControllers
	}
	return r.Role
}

func (r Reconciler) every(key string) (time.Duration, bool) {
	for _, p := range r.Periodic {
		if p.Key == key {
			return p.Every, true
		}
	}
	return 0, false
}

// Backoff is the wait after the given number of failed runs in a row.
func Backoff(attempts int) time.Duration {
	wait := backoffFirst
	for range attempts - 1 {
		if wait *= 2; wait >= backoffLimit {
			return backoffLimit
		}
	}
	return wait
}
