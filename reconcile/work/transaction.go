package work

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
)

// transaction is a pgx transaction that knows what to do once it is durable. Its savepoints
// hand their hooks up when they are released and drop them when they are rolled back.
type transaction struct {
	pgx.Tx
	parent *transaction
	hooks  []func()
}

// Transact runs fn in one READ COMMITTED transaction whose AfterCommit hooks run once it has
// committed.
func Transact(ctx context.Context, pool *store.Pool, fn func(tx pgx.Tx) error) error {
	return transact(ctx, pool, pgx.TxOptions{}, fn)
}

// TransactRead is Transact for readers: one snapshot, nothing can be written.
func TransactRead(ctx context.Context, pool *store.Pool, fn func(tx pgx.Tx) error) error {
	return transact(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}

func transact(ctx context.Context, pool *store.Pool, options pgx.TxOptions, fn func(tx pgx.Tx) error) error {
	inner, err := pool.BeginTx(ctx, options)
	if err != nil {
		return err
	}
	tx := &transaction{Tx: inner}
	// After a commit this rollback does nothing; after an error or a panic it is the end.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// AfterCommit runs hook once the outermost transaction of tx has committed, and never if it
// is rolled back. It panics where tx does not come from Transact: the hook would be lost.
func AfterCommit(tx pgx.Tx, hook func()) {
	t, ok := tx.(*transaction)
	if !ok {
		panic("work: AfterCommit needs a transaction opened by Transact")
	}
	t.hooks = append(t.hooks, hook)
}

// Begin opens a savepoint.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &transaction{Tx: inner, parent: t}, nil
}

// Commit releases a savepoint, or commits and runs the hooks.
func (t *transaction) Commit(ctx context.Context) error {
	if err := t.Tx.Commit(ctx); err != nil {
		return err
	}
	hooks := t.hooks
	t.hooks = nil
	if t.parent != nil {
		t.parent.hooks = append(t.parent.hooks, hooks...)
		return nil
	}
	for _, hook := range hooks {
		hook()
	}
	return nil
}
