package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// The work kinds of this extension, beside node.compose.
const (
	workDeliver = "node.deliver"
	workSweep   = "node.deliver-sweep"
)

// resendAfter is how long a declaration that nobody acknowledged is left alone.
const resendAfter = 30 * time.Second

// deliver gives a node's newest declaration to the broker if the node has not seen it.
func (d *Delivery) deliver(ctx context.Context, run *extension.Run, node string) (string, error) {
	var body []byte
	var epoch, generation int64
	var acknowledged *time.Time
	err := run.Store.QueryRow(ctx, `
SELECT epoch, generation, body, acknowledged_at FROM mesh.declarations
WHERE node = $1 ORDER BY epoch DESC, generation DESC LIMIT 1`, node).Scan(&epoch, &generation, &body, &acknowledged)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && acknowledged != nil {
		return extension.Done, nil
	}
	if err != nil {
		return "", fmt.Errorf("read declaration of %s: %w", node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	message := bus.Message{
		Exchange: bus.Orders, Key: bus.DeclareQueue(node), CorrelationID: fmt.Sprintf("%s/%d/%d", node, epoch, generation),
		Type: "declaration", Body: body,
	}
	err = d.config.Bus.Publish(ctx, message)
	if errors.Is(err, bus.ErrUnrouted) || errors.Is(err, bus.ErrNotFound) {
		if err = bus.Declare(ctx, d.config.Bus, bus.MeshTopology()); err == nil {
			err = bus.Declare(ctx, d.config.Bus, bus.NodeTopology(node))
		}
		if err == nil {
			err = d.config.Bus.Publish(ctx, message)
		}
	}
	if err != nil {
		return "", fmt.Errorf("deliver to %s: %w", node, err)
	}
	return extension.Done, run.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
UPDATE mesh.declarations SET published_at = clock_timestamp() WHERE node = $1 AND epoch = $2 AND generation = $3`, node, epoch, generation)
		return err
	})
}

// sweep delivers again what was pushed, given to the broker, and acknowledged by nobody.
func (d *Delivery) sweep(ctx context.Context, run *extension.Run, _ string) (string, error) {
	return extension.Done, run.Tx(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
SELECT DISTINCT node FROM mesh.declarations
WHERE acknowledged_at IS NULL AND published_at < clock_timestamp() - $1::interval`, resendAfter)
		if err != nil {
			return fmt.Errorf("read declarations: %w", err)
		}
		nodes, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("read declarations: %w", err)
		}
		return run.Work.EnqueueMany(ctx, tx, workDeliver, nodes)
	})
}

// onReport marks as acknowledged what a node says it has seen or refused: neither is told
// again by itself.
func (d *Delivery) onReport(ctx context.Context, c *extension.Context, tx pgx.Tx, report schema.Report) error {
	_, err := tx.Exec(ctx, `
UPDATE mesh.declarations SET acknowledged_at = clock_timestamp()
WHERE node = $1 AND acknowledged_at IS NULL AND
  ((epoch, generation) <= ($2, $3) OR epoch = $2 AND generation = $4)`, report.Node, report.Epoch, report.Seen, report.Refused)
	if err != nil {
		return fmt.Errorf("acknowledge declarations of %s: %w", report.Node, err)
	}
	c.AfterCommit(tx, d.changed)
	return nil
}
