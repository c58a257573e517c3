package extension

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// outbox appends events.
type outbox struct{}

func (outbox) Publish(ctx context.Context, tx pgx.Tx, events ...Event) error {
	for _, e := range events {
		data, err := encode(e.Data)
		if err != nil {
			return fmt.Errorf("publish %s: %w", e.Type, err)
		}
		_, err = tx.Exec(ctx, `INSERT INTO mesh.outbox (type, subject, data) VALUES ($1, $2, $3)`, e.Type, e.Subject, data)
		if err != nil {
			return fmt.Errorf("publish %s: %w", e.Type, err)
		}
	}
	return nil
}

// Cursor is a place in an ordered log. The zero cursor is its beginning.
type Cursor struct {
	Xid uint64
	ID  int64
}

// Entry is an event as read from the outbox.
type Entry struct {
	Cursor
	Type    string
	Subject string
	Data    json.RawMessage
	At      time.Time
}

// ReadOutbox reads up to limit events after the cursor, in order. It stops below the oldest
// transaction still running, so that a slow one's events are not passed over. Transactions of
// every database of the server count: a long one anywhere delays readers, and loses nothing.
func ReadOutbox(ctx context.Context, tx pgx.Tx, after Cursor, limit int) ([]Entry, error) {
	rows, err := tx.Query(ctx, `
SELECT xid, id, type, subject, data, at FROM mesh.outbox
WHERE (xid, id) > ($1::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY xid, id LIMIT $3`, after.Xid, after.ID, limit)
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
		err = row.Scan(&e.Xid, &e.ID, &e.Type, &e.Subject, &e.Data, &e.At)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	return entries, nil
}

// OutboxTail is the cursor after everything a reader may see at this moment.
func OutboxTail(ctx context.Context, tx pgx.Tx) (Cursor, error) {
	var c Cursor
	err := tx.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())`).Scan(&c.Xid)
	if err != nil {
		return Cursor{}, fmt.Errorf("read outbox: %w", err)
	}
	return c, nil
}

// LoadCursor answers where a consumer has read to; the zero cursor where it never read.
func LoadCursor(ctx context.Context, tx pgx.Tx, consumer string) (Cursor, error) {
	var c Cursor
	err := tx.QueryRow(ctx, `SELECT xid, id FROM mesh.cursors WHERE consumer = $1`, consumer).Scan(&c.Xid, &c.ID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Cursor{}, fmt.Errorf("load cursor %s: %w", consumer, err)
	}
	return c, nil
}

// SaveCursor records where a consumer has read to, in the transaction of what it did.
func SaveCursor(ctx context.Context, tx pgx.Tx, consumer string, c Cursor) error {
	_, err := tx.Exec(ctx, `
INSERT INTO mesh.cursors (consumer, xid, id) VALUES ($1, $2::xid8, $3)
ON CONFLICT (consumer) DO UPDATE SET xid = EXCLUDED.xid, id = EXCLUDED.id, moved = mesh.mesh_now()`, consumer, c.Xid, c.ID)
	if err != nil {
		return fmt.Errorf("save cursor %s: %w", consumer, err)
	}
	return nil
}
