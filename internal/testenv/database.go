package testenv

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/foundation"
	"github.com/mesh-control/mesh/internal/store"
)

const databasePassword = "test"

// Database makes an empty database and gives its URL, as superuser. It is dropped after the
// test, whoever is still connected.
func Database(t testing.TB) string {
	t.Helper()
	return database(t, "template0")
}

// Template prepares a database once in the test binary and copies it for every test.
// Declare one as a variable of the test package.
type Template struct {
	// Prepare fills the database at url, say by migrating it, and closes its connections.
	Prepare func(ctx context.Context, url string) error

	once sync.Once
	name string
	err  error
}

// Migrated is a template that migrate has filled.
func Migrated(migrate func(ctx context.Context, pool *store.Pool) error) *Template {
	return &Template{Prepare: func(ctx context.Context, url string) error {
		pool, err := store.Open(ctx, url)
		if err != nil {
			return err
		}
		defer pool.Close()
		return migrate(ctx, pool)
	}}
}

// Database is a fresh copy of the template. It is dropped after the test.
func (p *Template) Database(t testing.TB) string {
	t.Helper()
	server := servers.postgres.get(t, startPostgres)
	p.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		name := nextDatabase()
		if p.err = execute(ctx, server, create(name, "template0")); p.err != nil {
			return
		}
		if p.err = p.Prepare(ctx, databaseURL(server, name)); p.err == nil {
			p.name = name
		}
	})
	if p.err != nil {
		t.Fatalf("testenv: prepare template database: %v", p.err)
	}
	return database(t, p.name)
}

func database(t testing.TB, template string) string {
	t.Helper()
	server := servers.postgres.get(t, startPostgres)
	name := nextDatabase()
	if err := execute(t.Context(), server, create(name, template)); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := execute(ctx, server, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("testenv: %v", err)
		}
	})
	return databaseURL(server, name)
}

var databases atomic.Int64

func nextDatabase() string { return fmt.Sprintf("test_%d", databases.Add(1)) }

func create(name, template string) string {
	return fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY FILE_COPY", name, template)
}

func databaseURL(server foundation.Postgres, name string) string {
	return server.URL(foundation.DefaultDatabaseUser, databasePassword, name)
}

func execute(ctx context.Context, server foundation.Postgres, sql string) error {
	conn, err := pgx.Connect(ctx, databaseURL(server, "postgres"))
	if err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

func startPostgres(ctx context.Context) (foundation.Postgres, error) {
	recipe := foundation.Postgres{
		Password: databasePassword,
		Settings: map[string]string{
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
			"max_connections": "300", "shared_buffers": "64MB", "autovacuum_naptime": "10s",
		},
	}
	if os.Geteuid() == 0 {
		recipe.User = "postgres" // the server refuses to run as root
	}
	dir, err := servers.dir("postgres")
	if err != nil {
		return recipe, err
	}
	free, err := ports(1)
	if err != nil {
		return recipe, err
	}
	recipe.Dir, recipe.Port = dir, free[0]
	if err := recipe.Init(ctx); err != nil {
		return recipe, err
	}
	command, err := recipe.Command()
	if err != nil {
		return recipe, err
	}
	server, err := servers.start(command, syscall.SIGQUIT)
	if err != nil {
		return recipe, err
	}
	return recipe, server.until(ctx, recipe.WaitReady)
}
