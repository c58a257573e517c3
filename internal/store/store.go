// Package store opens PostgreSQL and migrates it.
//
// PostgreSQL is the mesh's truth. A [Pool] is an ordinary pgx pool with the timeouts the
// mesh needs: an idle transaction or a forgotten reader ruins a hot table for everybody, so
// both are ended by the server. [Migrate] applies a schema's migrations behind an advisory
// lock and keeps an append-only ledger of what it did.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool is a pgx pool with a transaction helper.
type Pool struct {
	*pgxpool.Pool
}

// The limits every session of ours works under, in PostgreSQL's own terms.
const (
	idleInTransaction = "60s"
	applicationName   = "mesh"
)

// Open connects to the database at url (postgres://…) and checks that it answers. The pool
// reconnects by itself after the server restarts; ctx bounds only the first answer.
func Open(ctx context.Context, url string) (*Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// The parser's error may quote the URL with its password.
		return nil, errors.New("open database: the URL cannot be read; expected postgres://user:password@host:port/database")
	}
	params := config.ConnConfig.RuntimeParams
	if params["application_name"] == "" {
		params["application_name"] = applicationName
	}
	params["idle_in_transaction_session_timeout"] = idleInTransaction
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	config.MaxConnIdleTime = 5 * time.Minute
	config.HealthCheckPeriod = 15 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", address(config), err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open database %s: %w", address(config), err)
	}
	return &Pool{Pool: pool}, nil
}

func address(config *pgxpool.Config) string {
	c := config.ConnConfig
	return fmt.Sprintf("%s@%s:%d/%s", c.User, c.Host, c.Port, c.Database)
}

// WaitOpen is Open that tries again, once a second, until the database answers or ctx ends.
func WaitOpen(ctx context.Context, url string) (*Pool, error) {
	for {
		pool, err := Open(ctx, url)
		if err == nil || !Unreachable(err) {
			return pool, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Second):
		}
	}
}

// Unreachable says whether err means that the server was not there or was starting or
// ending, so that trying again later may help.
func Unreachable(err error) bool {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		var pg *pgconn.PgError
		if errors.As(err, &pg) {
			return pg.Code[:2] == "57" || pg.Code[:2] == "53" || pg.Code[:2] == "08"
		}
		return true
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code[:2] == "57" || pg.Code[:2] == "08"
	}
	return pgconn.SafeToRetry(err)
}

// Tx runs fn in one READ COMMITTED transaction: committed when fn returns nil, rolled back
// when it returns an error or panics.
func (p *Pool) Tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, p.Pool, fn)
}

// ReadTx runs fn in a read-only transaction that sees one snapshot.
func (p *Pool) ReadTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, p.Pool, options, fn)
}
