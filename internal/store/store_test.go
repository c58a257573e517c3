package store_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

func open(t *testing.T) *store.Pool {
	t.Helper()
	pool, err := store.Open(context.Background(), testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func count(t *testing.T, pool *store.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestS2_097_MigrationNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"acme/0001_widgets": true, "acme/001_widgets": false, "Acme/0001_widgets": false, "acme/0001_": false,
		"acme/0001_W": false, "acme/0001_" + strings.Repeat("a", 96): true, "acme/0001_" + strings.Repeat("a", 97): false, "0001_x": false,
	} {
		err := store.CheckMigrations([]store.Migration{{Name: name, SQL: "SELECT 1"}})
		if (err == nil) != ok {
			t.Errorf("%s: got %v, want accepted %v", name, err, ok)
		}
	}
}

func TestS2_099_NumbersStrictlyIncrease(t *testing.T) {
	t.Parallel()
	list := func(names ...string) (all []store.Migration) {
		for _, name := range names {
			all = append(all, store.Migration{Name: name, SQL: "SELECT 1"})
		}
		return all
	}
	if err := store.CheckMigrations(list("a/0001_x", "b/0001_x", "a/0003_y")); err != nil {
		t.Errorf("gaps and two owners: %v", err)
	}
	if err := store.CheckMigrations(list("a/0002_x", "a/0001_y")); err == nil {
		t.Error("a smaller number was accepted")
	}
	if err := store.CheckMigrations(list("a/0001_x", "a/0001_y")); err == nil {
		t.Error("an equal number was accepted")
	}
}

func TestS2_101_NothingRunsBeforeNamesAreChecked(t *testing.T) {
	t.Parallel()
	pool := open(t)
	err := store.Migrate(context.Background(), pool, "mesh", []store.Migration{
		{Name: "a/0001_x", SQL: "CREATE TABLE x (id int)"}, {Name: "bad", SQL: "SELECT 1"},
	})
	if err == nil || !strings.Contains(err.Error(), "bad") {
		t.Fatalf("got %v, want an error that names the migration", err)
	}
	if n := count(t, pool, `SELECT count(*) FROM pg_namespace WHERE nspname = 'mesh'`); n != 0 {
		t.Error("the schema was made")
	}
}

func TestS2_102_EachMigrationInItsOwnTransaction(t *testing.T) {
	t.Parallel()
	pool := open(t)
	err := store.Migrate(context.Background(), pool, "mesh", []store.Migration{
		{Name: "a/0001_x", SQL: "CREATE TABLE x (id int)"},
		{Name: "a/0002_y", SQL: "CREATE TABLE y (id int); SELECT 1/0"},
	})
	if err == nil || !strings.Contains(err.Error(), "a/0002_y") {
		t.Fatalf("got %v, want an error that names a/0002_y", err)
	}
	if n := count(t, pool, `SELECT count(*) FROM mesh.mesh_migrations`); n != 1 {
		t.Errorf("%d migrations recorded, want the first", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM pg_tables WHERE schemaname = 'mesh' AND tablename IN ('x', 'y')`); n != 1 {
		t.Errorf("%d tables, want the first migration's", n)
	}
}

func TestS2_103_LedgerIsAppendOnly(t *testing.T) {
	t.Parallel()
	pool := open(t)
	ctx := context.Background()
	if err := store.Migrate(ctx, pool, "mesh", []store.Migration{{Name: "a/0001_x", SQL: "CREATE TABLE x (id int)"}}); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`UPDATE mesh.mesh_migrations SET checksum = ''`, `DELETE FROM mesh.mesh_migrations`, `TRUNCATE mesh.mesh_migrations`} {
		if _, err := pool.Exec(ctx, sql); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: got %v", sql, err)
		}
	}
}

func TestS2_104_MigratorsWorkOneAtATime(t *testing.T) {
	t.Parallel()
	pool := open(t)
	var calls atomic.Int32
	migrations := []store.Migration{{Name: "a/0001_x", Func: func(ctx context.Context, tx pgx.Tx) error {
		calls.Add(1)
		_, err := tx.Exec(ctx, "CREATE TABLE x (id int)")
		return err
	}}, {Name: "a/0002_y", SQL: "CREATE TABLE y (id int)"}}
	var group sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		group.Go(func() { errs[i] = store.Migrate(context.Background(), pool, "mesh", migrations) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if calls.Load() != 1 {
		t.Errorf("the function ran %d times, want once", calls.Load())
	}
}

func TestS2_107_ChangedMigrationIsRefused(t *testing.T) {
	t.Parallel()
	pool := open(t)
	ctx := context.Background()
	if err := store.Migrate(ctx, pool, "mesh", []store.Migration{{Name: "a/0001_x", SQL: "CREATE TABLE x (id int)"}}); err != nil {
		t.Fatal(err)
	}
	err := store.Migrate(ctx, pool, "mesh", []store.Migration{{Name: "a/0001_x", SQL: "CREATE TABLE x (id int) "}})
	if err == nil || !strings.Contains(err.Error(), "a/0001_x") || !strings.Contains(err.Error(), "next number") {
		t.Fatalf("got %v, want a refusal that names the migration and the remedy", err)
	}
}

func TestOpenNamesTheServerAndNoPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://u:canary-secret@127.0.0.1:1/x", "postgres://u:canary-secret@127.0.0.1:bad/x"} {
		_, err := store.Open(context.Background(), url)
		if err == nil || strings.Contains(err.Error(), "canary-secret") {
			t.Errorf("got %v", err)
		}
	}
	if _, err := store.Open(context.Background(), "postgres://u:p@127.0.0.1:1/x"); !store.Unreachable(err) {
		t.Errorf("a refused connection is not said to be unreachable: %v", err)
	}
}

func TestTxRollsBack(t *testing.T) {
	t.Parallel()
	pool := open(t)
	ctx := context.Background()
	if _, err := pool.Exec(ctx, "CREATE TABLE x (id int)"); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := pool.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO x VALUES (1)")
		return errors.Join(err, broken)
	})
	if !errors.Is(err, broken) || count(t, pool, "SELECT count(*) FROM x") != 0 {
		t.Errorf("got %v and %d rows", err, count(t, pool, "SELECT count(*) FROM x"))
	}
	err = pool.ReadTx(ctx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "INSERT INTO x VALUES (1)"); return err })
	if err == nil {
		t.Error("a read-only transaction wrote")
	}
}
