package work

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
)

// ErrFenced is what a transaction fails with whose lease has passed to another holder.
var ErrFenced = errors.New("the lease has passed to another holder")

var (
	//go:embed sql/fence.sql
	fenceSQL string
	//go:embed sql/lease_create.sql
	leaseCreateSQL string
	//go:embed sql/lease_take.sql
	leaseTakeSQL string
	//go:embed sql/lease_renew.sql
	leaseRenewSQL string
	//go:embed sql/lease_release.sql
	leaseReleaseSQL string
)

// Leases are the named leases of one holder.
type Leases struct {
	pool   *store.Pool
	holder string
	idle   time.Duration // how long a fenced transaction may sit idle
}

// NewLeases returns the leases as holder sees them. A fenced transaction that sits idle for
// longer than idle is ended by the server, so that a paused process cannot keep a lease from
// its successor.
func NewLeases(pool *store.Pool, holder string, idle time.Duration) *Leases {
	return &Leases{pool: pool, holder: holder, idle: idle}
}

// Acquire takes the lease if it is free, renews it if this holder has it, and answers false
// if another holds it.
func (l *Leases) Acquire(ctx context.Context, name string, ttl time.Duration) (epoch int64, ok bool, err error) {
	if err := l.create(ctx, []string{name}); err != nil {
		return 0, false, err
	}
	// Renewal looks the epoch up in the row itself: only the holder's name must agree.
	err = l.pool.QueryRow(ctx, `
UPDATE mesh.lease_expiry SET expires = mesh.mesh_now() + $3::interval
WHERE name = $1 AND holder = $2 RETURNING epoch`, name, l.holder, ttl).Scan(&epoch)
	if err == nil {
		return epoch, true, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fmt.Errorf("acquire lease %s: %w", name, err)
	}
	taken, err := l.take(ctx, []string{name}, ttl)
	if err != nil {
		return 0, false, err
	}
	epoch, ok = taken[name]
	return epoch, ok, nil
}

// Release gives the lease back. One that has passed to another holder is left alone.
func (l *Leases) Release(ctx context.Context, name string, epoch int64) error {
	return l.release(ctx, map[string]int64{name: epoch})
}

// Fence makes tx fail with [ErrFenced] unless the lease still has this epoch, and keeps the
// lease from passing on until tx has ended.
func (l *Leases) Fence(ctx context.Context, tx pgx.Tx, name string, epoch int64) error {
	var set string
	err := tx.QueryRow(ctx, fenceSQL, name, epoch, fmt.Sprintf("%dms", l.idle.Milliseconds())).Scan(&set)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("fence %s at epoch %d: %w", name, epoch, ErrFenced)
	}
	if err != nil {
		return fmt.Errorf("fence %s: %w", name, err)
	}
	return nil
}

func (l *Leases) create(ctx context.Context, names []string) error {
	if _, err := l.pool.Exec(ctx, leaseCreateSQL, names); err != nil {
		return fmt.Errorf("create leases: %w", err)
	}
	return nil
}

func (l *Leases) take(ctx context.Context, names []string, ttl time.Duration) (map[string]int64, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := l.pool.Query(ctx, leaseTakeSQL, names, l.holder, ttl)
	if err != nil {
		return nil, fmt.Errorf("take leases: %w", err)
	}
	taken, err := collectEpochs(rows)
	if err != nil {
		return nil, fmt.Errorf("take leases: %w", err)
	}
	return taken, nil
}

// renew answers those of held that are still this holder's.
func (l *Leases) renew(ctx context.Context, held map[string]int64, ttl time.Duration) (map[string]int64, error) {
	if len(held) == 0 {
		return nil, nil
	}
	names, epochs := columns(held)
	rows, err := l.pool.Query(ctx, leaseRenewSQL, l.holder, ttl, names, epochs)
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	kept, err := collectEpochs(rows)
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	return kept, nil
}

func (l *Leases) release(ctx context.Context, held map[string]int64) error {
	if len(held) == 0 {
		return nil
	}
	names, epochs := columns(held)
	if _, err := l.pool.Exec(ctx, leaseReleaseSQL, l.holder, names, epochs); err != nil {
		return fmt.Errorf("release leases: %w", err)
	}
	return nil
}

func collectEpochs(rows pgx.Rows) (map[string]int64, error) {
	epochs := map[string]int64{}
	var name string
	var epoch int64
	_, err := pgx.ForEachRow(rows, []any{&name, &epoch}, func() error {
		epochs[name] = epoch
		return nil
	})
	return epochs, err
}

func columns(held map[string]int64) (names []string, epochs []int64) {
	for name := range held {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		epochs = append(epochs, held[name])
	}
	return names, epochs
}
