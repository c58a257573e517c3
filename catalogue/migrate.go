package catalogue

import (
	"context"
	"embed"
	"fmt"

	"github.com/mesh-control/mesh/internal/store"
)

// Schema is the database schema the catalogue owns; nobody else writes it.
const Schema = "catalogue"

//go:embed migrations/*.sql
var migrations embed.FS

//go:embed grants.sql
var grants string

// Migrations of the catalogue's schema, in order.
func Migrations() []store.Migration { return store.Embedded(migrations, Schema) }

// Migrate brings the schema up to date and lets the role mesh_controller, where it exists,
// read the tables and call the request functions.
func Migrate(ctx context.Context, pool *store.Pool) error {
	if err := store.Migrate(ctx, pool, Schema, Migrations()); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, grants); err != nil {
		return fmt.Errorf("grant catalogue to mesh_controller: %w", err)
	}
	return nil
}
