package builds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// publish puts an open build's job on the queue, once, until sweep says that it was lost.
func (b *Builds) publish(ctx context.Context, run *extension.Run, id string) (string, error) {
	var document []byte
	var requested time.Time
	var published *time.Time
	err := run.Store.QueryRow(ctx, `
SELECT job, requested_at, published_at FROM mesh.builds WHERE id = $1 AND outcome = ''`, id).Scan(&document, &requested, &published)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && published != nil {
		return extension.Done, nil
	}
	if err != nil {
		return "", fmt.Errorf("read build %s: %w", id, err)
	}
	// The credential is the one of this moment: it may have been given or changed since.
	var job schema.Job
	if err := json.Unmarshal(document, &job); err != nil {
		return "", fmt.Errorf("read build %s: %w", id, err)
	}
	credentials, ready, err := jobCredentials(ctx, run.Store, job.Repository)
	if err != nil {
		return "", err
	}
	if !ready && time.Since(requested) < sealedWait {
		return extension.SyncAgain, nil
	}
	job.Credentials = credentials
	if document, err = json.Marshal(job); err != nil {
		return "", fmt.Errorf("encode build %s: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	// The build's id is the message's too, so that a consumer can tell a doubled one.
	err = b.config.Bus.Publish(ctx, bus.Message{
		Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: id, MessageID: id,
		ReplyTo: bus.ReplyQueue(b.config.Client), Type: "job", Body: document,
	})
	if err != nil {
		return "", fmt.Errorf("publish build %s: %w", id, err)
	}
	return extension.Done, run.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE mesh.builds SET published_at = clock_timestamp() WHERE id = $1`, id)
		return err
	})
}

// settleAfter is how long a published job is left alone: the broker's own counts lag.
const settleAfter = 30 * time.Second

// sweep puts open builds on the queue again once the queue holds none of them, neither
// waiting nor at a builder. Whatever emptied it, the database is the record.
func (b *Builds) sweep(ctx context.Context, run *extension.Run, _ string) (string, error) {
	var open int
	err := run.Store.QueryRow(ctx, `
SELECT count(*) FROM mesh.builds
WHERE outcome = '' AND published_at < clock_timestamp() - $1::interval OR cancelled_at IS NOT NULL AND (outcome = '' OR cancel_bound)`,
		settleAfter).Scan(&open)
	if err != nil || open == 0 {
		return extension.Done, err
	}
	info, err := b.config.Admin.QueueInfo(ctx, bus.Builds)
	if err != nil {
		return "", err
	}
	if err := b.sweepCancelled(ctx, run, info.Messages == 0); err != nil || info.Messages > 0 {
		return extension.Done, err
	}
	return extension.Done, run.Tx(ctx, func(tx pgx.Tx) error {
		return b.republish(ctx, run.Context, tx, settleAfter)
	})
}

// republish makes every open build that was published before be published again.
func (b *Builds) republish(ctx context.Context, c *extension.Context, tx pgx.Tx, age time.Duration) error {
	rows, err := tx.Query(ctx, `
UPDATE mesh.builds SET published_at = NULL
WHERE outcome = '' AND published_at < clock_timestamp() - $1::interval RETURNING id`, age)
	if err != nil {
		return fmt.Errorf("read lost builds: %w", err)
	}
	lost, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read lost builds: %w", err)
	}
	return c.Work.EnqueueMany(ctx, tx, workPublish, lost)
}
