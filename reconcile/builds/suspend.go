package builds

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
)

// suspendModule makes building what is behind leave a module alone, or take it again. Naming
// the module still builds it.
func (b *Builds) suspendModule(ctx context.Context, tx pgx.Tx, caller string, in api.ModuleSuspendIn) error {
	if !in.Suspended {
		tag, err := tx.Exec(ctx, `DELETE FROM mesh.suspended_modules WHERE module = $1`, in.Module)
		if err != nil {
			return fmt.Errorf("resume module %s: %w", in.Module, err)
		}
		if tag.RowsAffected() == 0 {
			return &api.Error{Code: api.CodeConflict, Message: "module " + in.Module + " is not suspended", Remedy: "mesh why " + in.Module}
		}
		return nil
	}
	f, err := b.facts(ctx, tx)
	if err != nil {
		return err
	}
	if f.modules[in.Module] == nil {
		return &api.Error{Code: api.CodeNotFound, Message: "there is no module " + in.Module, Remedy: "mesh status"}
	}
	_, err = tx.Exec(ctx, `INSERT INTO mesh.suspended_modules (module, suspended_by) VALUES ($1, $2) ON CONFLICT DO NOTHING`, in.Module, caller)
	if err != nil {
		return fmt.Errorf("suspend module %s: %w", in.Module, err)
	}
	return nil
}

// readSuspended notes which modules are suspended by name. Of a module and its repository the
// module is told, since resuming the repository would not be enough.
func readSuspended(ctx context.Context, q inventory.Queryer, f *facts) error {
	rows, err := q.Query(ctx, `SELECT module, suspended_by, suspended_at FROM mesh.suspended_modules`)
	if err != nil {
		return fmt.Errorf("read suspended modules: %w", err)
	}
	var module, by string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&module, &by, &at}, func() error {
		if m := f.modules[module]; m != nil {
			m.source.Suspended = fmt.Sprintf("suspended by %s on %s", by, at.UTC().Format(time.DateOnly))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read suspended modules: %w", err)
	}
	return nil
}
