package catalogue

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/mesh-control/mesh/internal/store"
)

// Schema is the database schema the catalogue owns; nobody else writes it.
const Schema = "catalogue"

//go:embed migrations/*.sql
var migrations embed.FS

//go:embed grants.sql
var grants string

// Migrations of the catalogue's schema, in order.
func Migrations() ([]store.Migration, error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var list []store.Migration
	for _, file := range files {
		sql, err := migrations.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(file, "migrations/"), ".sql")
		list = append(list, store.Migration{Name: Schema + "/" + name, SQL: string(sql)})
	}
	return list, nil
}

// Migrate brings the schema up to date and lets the role mesh_controller, where it exists,
// read the tables and call the request functions.
func Migrate(ctx context.Context, pool *store.Pool) error {
	list, err := Migrations()
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx, pool, Schema, list); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, grants); err != nil {
		return fmt.Errorf("grant catalogue to mesh_controller: %w", err)
	}
	return nil
}
