package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Migration is one step of a schema. Exactly one of SQL and Func is set. A shipped
// migration is never edited: its checksum is in the ledger, and a changed one is refused.
type Migration struct {
	Name string // <owner>/<nnnn>_<slug>
	SQL  string
	Func func(ctx context.Context, tx pgx.Tx) error
}

// Embedded are the migrations in files, migrations/<nnnn>_<slug>.sql, of an owner. files is
// an embed.FS: reading one cannot fail.
func Embedded(files fs.ReadFileFS, owner string) []Migration {
	names, _ := fs.Glob(files, "migrations/*.sql")
	out := make([]Migration, 0, len(names))
	for _, name := range names {
		text, _ := files.ReadFile(name)
		out = append(out, Migration{Name: owner + "/" + strings.TrimSuffix(path.Base(name), ".sql"), SQL: string(text)})
	}
	return out
}

var migrationName = regexp.MustCompile(`^([a-z][a-z0-9-]{0,63})/(\d{4})_[a-z0-9][a-z0-9_-]{0,95}$`)

// Owner is the part of the name before the slash, or "" where the name is not well formed.
func (m Migration) Owner() string {
	if parts := migrationName.FindStringSubmatch(m.Name); parts != nil {
		return parts[1]
	}
	return ""
}

// CheckMigrations checks names, numbers and bodies of the whole list and reports every
// problem at once. It needs no database.
func CheckMigrations(migrations []Migration) error {
	var problems []error
	last := map[string]int{}
	seen := map[string]bool{}
	for _, m := range migrations {
		parts := migrationName.FindStringSubmatch(m.Name)
		if parts == nil {
			problems = append(problems, fmt.Errorf("migration %q: the name must be <owner>/<nnnn>_<slug>", m.Name))
			continue
		}
		if (m.SQL == "") == (m.Func == nil) {
			problems = append(problems, fmt.Errorf("migration %s: needs exactly one of SQL and function", m.Name))
		}
		if seen[m.Name] {
			problems = append(problems, fmt.Errorf("migration %s: listed twice", m.Name))
			continue
		}
		seen[m.Name] = true
		number, _ := strconv.Atoi(parts[2])
		if before, ok := last[parts[1]]; ok && number <= before {
			problems = append(problems, fmt.Errorf("migration %s: its number must be above %04d", m.Name, before))
		}
		last[parts[1]] = number
	}
	return errors.Join(problems...)
}

// checksum of a function migration covers its name only: code has no bytes to compare.
func (m Migration) checksum() string {
	sum := sha256.Sum256([]byte(m.Name + "\x00" + m.SQL))
	return hex.EncodeToString(sum[:])
}

// Migrate brings schema up to date: it creates it where it is missing, then applies what the
// ledger <schema>.mesh_migrations does not have, in the order given, each in a transaction
// of its own. Several migrators work one at a time and find done what another did.
func Migrate(ctx context.Context, pool *Pool, schema string, migrations []Migration) error {
	if err := CheckMigrations(migrations); err != nil {
		return err
	}
	if err := prepare(ctx, pool, schema); err != nil {
		return fmt.Errorf("prepare schema %s: %w", schema, err)
	}
	for _, m := range migrations {
		if err := apply(ctx, pool, schema, m); err != nil {
			return fmt.Errorf("migrate %s: %w", m.Name, err)
		}
	}
	return nil
}

// lock is transaction-bound on purpose: a connection pooler strands the session kind.
func lock(ctx context.Context, tx pgx.Tx, schema string) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('mesh_migrations'), hashtext($1))`, schema)
	return err
}

func prepare(ctx context.Context, pool *Pool, schema string) error {
	return pool.Tx(ctx, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, schema); err != nil {
			return err
		}
		var ready bool
		err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, quote(schema)+".mesh_migrations").Scan(&ready)
		if err != nil || ready {
			return err
		}
		return createLedger(ctx, tx, schema)
	})
}

func createLedger(ctx context.Context, tx pgx.Tx, schema string) error {
	s := quote(schema)
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, s).Scan(&exists); err != nil {
		return err
	}
	// CREATE SCHEMA IF NOT EXISTS asks for the right to create even where it exists.
	if !exists {
		if _, err := tx.Exec(ctx, `CREATE SCHEMA `+s); err != nil {
			return err
		}
	}
	// mesh_now must be STABLE: a volatile clock keeps the planner off the index on due.
	_, err := tx.Exec(ctx, `
CREATE FUNCTION `+s+`.mesh_now() RETURNS timestamptz LANGUAGE sql STABLE
  AS $$ SELECT pg_catalog.statement_timestamp() $$;
CREATE TABLE `+s+`.mesh_migrations (
  name text PRIMARY KEY,
  checksum text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT `+s+`.mesh_now()
);
CREATE FUNCTION `+s+`.mesh_migrations_append_only() RETURNS trigger LANGUAGE plpgsql
  AS $$ BEGIN RAISE EXCEPTION 'mesh_migrations is append-only'; END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON `+s+`.mesh_migrations
  FOR EACH STATEMENT EXECUTE FUNCTION `+s+`.mesh_migrations_append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON `+s+`.mesh_migrations
  FOR EACH STATEMENT EXECUTE FUNCTION `+s+`.mesh_migrations_append_only();`)
	return err
}

func apply(ctx context.Context, pool *Pool, schema string, m Migration) error {
	return pool.Tx(ctx, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, schema); err != nil {
			return err
		}
		s := quote(schema)
		var known string
		err := tx.QueryRow(ctx, `SELECT checksum FROM `+s+`.mesh_migrations WHERE name = $1`, m.Name).Scan(&known)
		switch {
		case err == nil && known == m.checksum():
			return nil
		case err == nil:
			return errors.New("it was changed after it had been applied; add a new migration with the next number instead")
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		}
		if _, err := tx.Exec(ctx, `SET LOCAL search_path TO `+s+`, public`); err != nil {
			return err
		}
		if m.Func != nil {
			err = m.Func(ctx, tx)
		} else {
			_, err = tx.Exec(ctx, m.SQL)
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO `+s+`.mesh_migrations (name, checksum) VALUES ($1, $2)`, m.Name, m.checksum())
		return err
	})
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
