package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

var errUnknownNode = errors.New("the mesh has no such node")

// Report stores a node's report if it is newer than the last: a higher epoch, or a higher
// sequence in the same one. What the node can do is kept with the node, and composition
// looks again when that has changed.
func Report(ctx context.Context, c *extension.Context, tx pgx.Tx, report schema.Report) error {
	var platform string
	var known int
	var capabilities []string
	err := tx.QueryRow(ctx, `SELECT platform, schema, capabilities FROM mesh.nodes WHERE name = $1 FOR NO KEY UPDATE`, report.Node).
		Scan(&platform, &known, &capabilities)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("report of %s: %w", report.Node, errUnknownNode)
	}
	if err != nil {
		return fmt.Errorf("report of %s: %w", report.Node, err)
	}
	stored, err := tx.Exec(ctx, `
INSERT INTO mesh.reports AS r (node, epoch, sequence, seen, applied, applied_hash, outcome, cause, body, applied_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, CASE WHEN $5::bigint > 0 THEN mesh.mesh_now() END)
ON CONFLICT (node) DO UPDATE SET epoch = excluded.epoch, sequence = excluded.sequence, seen = excluded.seen,
  applied = excluded.applied, applied_hash = excluded.applied_hash, outcome = excluded.outcome,
  cause = excluded.cause, body = excluded.body, received_at = excluded.received_at,
  applied_at = CASE WHEN (r.epoch, r.applied) = (excluded.epoch, excluded.applied) THEN r.applied_at ELSE excluded.applied_at END
WHERE (r.epoch, r.sequence) < (excluded.epoch, excluded.sequence)`,
		report.Node, report.Epoch, report.Sequence, report.Seen, report.Applied, report.AppliedHash,
		report.Outcome, report.Cause, report)
	if err != nil {
		return fmt.Errorf("report of %s: %w", report.Node, err)
	}
	if stored.RowsAffected() == 0 {
		return nil // late or doubled
	}
	now := slices.Clone(report.Capabilities)
	slices.Sort(now)
	now = slices.Compact(now)
	if platform != report.Agent.Platform || known != report.Agent.Schema || !slices.Equal(now, capabilities) {
		if now == nil {
			now = []string{}
		}
		_, err := tx.Exec(ctx, `UPDATE mesh.nodes SET platform = $2, schema = $3, capabilities = $4 WHERE name = $1`,
			report.Node, report.Agent.Platform, report.Agent.Schema, now)
		if err != nil {
			return fmt.Errorf("report of %s: %w", report.Node, err)
		}
		if err := c.Desired.Invalidate(ctx, tx, report.Node); err != nil {
			return err
		}
	}
	return c.HandleReport(ctx, tx, report)
}
