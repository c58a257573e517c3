package extension

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/schema"
)

// HandleReport gives a node's report to every status handler in the transaction that stores
// it, in registration order. Each works under a savepoint of its own: one that fails or
// panics loses its own writes only, and is logged. An error is the transaction's.
func (h *Host) HandleReport(ctx context.Context, tx pgx.Tx, report schema.Report) error {
	for _, e := range h.extensions {
		for _, handler := range e.StatusHandlers {
			savepoint, err := tx.Begin(ctx)
			if err != nil {
				return fmt.Errorf("report of node %s: %w", report.Node, err)
			}
			if err := h.handleStatus(ctx, handler, savepoint, report); err != nil {
				h.config.Log.Warn("status handler failed", "extension", e.Name, "node", report.Node, "error", err)
				err = savepoint.Rollback(ctx)
				if err != nil {
					return fmt.Errorf("report of node %s: %w", report.Node, err)
				}
				continue
			}
			if err := savepoint.Commit(ctx); err != nil {
				return fmt.Errorf("report of node %s: %w", report.Node, err)
			}
		}
	}
	return nil
}

func (h *Host) handleStatus(ctx context.Context, handler StatusHandler, tx pgx.Tx, report schema.Report) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return handler(ctx, h.context, tx, report)
}
