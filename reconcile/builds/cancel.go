package builds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// Reasons of a cancelled build.
const (
	reasonCancelled  = "Cancelled"
	reasonSuperseded = "Superseded"
)

// answerWithin is how long the builder of a cancelled build has to say that it ended. After
// that the controller says so itself, and what the builder says later changes nothing.
const answerWithin = time.Minute

// cancel ends a build: at once when no builder has it, else by telling the builder, which
// answers within seconds.
func (b *Builds) cancel(ctx context.Context, c *extension.Context, tx pgx.Tx, caller string, in api.BuildCancelIn) (api.Build, error) {
	found, err := find(ctx, tx, in.ID)
	if err != nil {
		return api.Build{}, err
	}
	if !found.Ended.IsZero() {
		return api.Build{}, &api.Error{
			Code: api.CodeConflict, Message: fmt.Sprintf("build %s has ended: %s", found.ID, found.State), Remedy: "mesh builds show " + found.ID,
		}
	}
	why := schema.BuildError{Reason: reasonCancelled, Message: "cancelled by " + caller, Remedy: "mesh build asks for it again"}
	if err := b.endOpen(ctx, c, tx, found.ID, why); err != nil {
		return api.Build{}, err
	}
	return find(ctx, tx, found.ID)
}

// supersede ends builds of a place whose outcome nobody waits for: those asked for before the
// newer one that are still open.
func (b *Builds) supersede(ctx context.Context, c *extension.Context, tx pgx.Tx, newer string, older []string) error {
	why := schema.BuildError{
		Reason: reasonSuperseded, Message: "build " + newer + " of the same module was asked for later and stands in its place", Remedy: "mesh builds show " + newer,
	}
	for _, id := range older {
		if err := b.endOpen(ctx, c, tx, id, why); err != nil {
			return err
		}
	}
	return nil
}

// endOpen records why an open build is cancelled, and its result where no builder has it yet.
func (b *Builds) endOpen(ctx context.Context, c *extension.Context, tx pgx.Tx, id string, why schema.BuildError) error {
	var started *time.Time
	err := tx.QueryRow(ctx, `
UPDATE mesh.builds SET cancelled_at = coalesce(cancelled_at, clock_timestamp()), cancel_error = coalesce(cancel_error, $2)
WHERE id = $1 AND outcome = '' RETURNING started_at`, id, why).Scan(&started)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // it ended meanwhile
	}
	if err != nil {
		return fmt.Errorf("cancel build %s: %w", id, err)
	}
	if started == nil {
		if err := b.recordCancelled(ctx, tx, id, c.Clock.Now()); err != nil {
			return err
		}
	}
	return c.Work.Enqueue(ctx, tx, workCancel, id, time.Time{})
}

// recordCancelled gives a build the result that no builder gave it.
func (b *Builds) recordCancelled(ctx context.Context, tx pgx.Tx, id string, now time.Time) error {
	result := schema.Result{Schema: schema.Version, ID: id, Outcome: schema.OutcomeCancelled, Started: now, Ended: now}
	var builder string
	var started *time.Time
	err := tx.QueryRow(ctx, `SELECT repository, path, ref, module, cancel_error, builder, started_at FROM mesh.builds WHERE id = $1`, id).
		Scan(&result.Repository, &result.Path, &result.Ref, &result.Module, &result.Error, &builder, &started)
	if err != nil {
		return fmt.Errorf("cancel build %s: %w", id, err)
	}
	if started != nil {
		result.Started = *started
	}
	return writeResult(ctx, tx, builder, result)
}

// tellCancelled has the broker say to builders that a build is cancelled, for as long as one
// may come to have it: until one answered.
func (b *Builds) tellCancelled(ctx context.Context, run *extension.Run, id string) (string, error) {
	var cancelled, answered *time.Time
	var bound bool
	var outcome string
	err := run.Store.QueryRow(ctx, `SELECT cancelled_at, answered_at, cancel_bound, outcome FROM mesh.builds WHERE id = $1`, id).
		Scan(&cancelled, &answered, &bound, &outcome)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && cancelled == nil {
		return extension.Done, nil
	}
	if err != nil {
		return "", fmt.Errorf("read build %s: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	binding := bus.Binding{Exchange: bus.Answers, Key: bus.KeyBuildCancelled(id)}
	if answered != nil {
		if err := b.config.Bus.Unbind(ctx, bus.BuildsCancelled, binding); err != nil {
			return "", err
		}
	} else if err := b.config.Bus.Bind(ctx, bus.BuildsCancelled, binding); err != nil {
		return "", err
	}
	return extension.Done, run.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE mesh.builds SET cancel_bound = $2 WHERE id = $1`, id, answered == nil)
		return err
	})
}

// noteAnswer records that a builder has answered a cancelled build, so that it need not be
// told again.
func noteAnswer(ctx context.Context, c *extension.Context, tx pgx.Tx, id string) error {
	tag, err := tx.Exec(ctx, `
UPDATE mesh.builds SET answered_at = clock_timestamp() WHERE id = $1 AND cancelled_at IS NOT NULL AND answered_at IS NULL`, id)
	if err != nil {
		return fmt.Errorf("record answer of build %s: %w", id, err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	return c.Work.Enqueue(ctx, tx, workCancel, id, time.Time{})
}

// sweepCancelled says for builders what they did not say in time, tells the broker again what
// it may have forgotten, and ends what nobody can come to have any more: the queue is empty.
func (b *Builds) sweepCancelled(ctx context.Context, run *extension.Run, queueEmpty bool) error {
	return run.Tx(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
SELECT id, outcome = '' AND cancelled_at < clock_timestamp() - $1::interval FROM mesh.builds
WHERE cancel_bound OR cancelled_at IS NOT NULL AND outcome = ''`, answerWithin)
		if err != nil {
			return fmt.Errorf("read cancelled builds: %w", err)
		}
		type row struct {
			ID   string
			Late bool
		}
		open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err != nil {
			return fmt.Errorf("read cancelled builds: %w", err)
		}
		for _, r := range open {
			if r.Late {
				if err := b.recordCancelled(ctx, tx, r.ID, run.Clock.Now()); err != nil {
					return err
				}
			}
			if queueEmpty {
				if err := noteAnswerOfNobody(ctx, tx, r.ID); err != nil {
					return err
				}
			}
			if err := run.Work.Enqueue(ctx, tx, workCancel, r.ID, time.Time{}); err != nil {
				return err
			}
		}
		return nil
	})
}

func noteAnswerOfNobody(ctx context.Context, tx pgx.Tx, id string) error {
	_, err := tx.Exec(ctx, `
UPDATE mesh.builds SET answered_at = clock_timestamp() WHERE id = $1 AND outcome <> '' AND answered_at IS NULL`, id)
	if err != nil {
		return fmt.Errorf("end cancellation of build %s: %w", id, err)
	}
	return nil
}

// cancelledBecause puts who cancelled it before what the builder says of a cancelled build.
func cancelledBecause(ctx context.Context, tx pgx.Tx, result *schema.Result) error {
	if result.Outcome != schema.OutcomeCancelled {
		return nil
	}
	var why []byte
	if err := tx.QueryRow(ctx, `SELECT cancel_error FROM mesh.builds WHERE id = $1`, result.ID).Scan(&why); err != nil {
		return fmt.Errorf("record result of %s: %w", result.ID, err)
	}
	if why == nil {
		return nil
	}
	var said schema.BuildError
	if err := json.Unmarshal(why, &said); err != nil {
		return fmt.Errorf("record result of %s: %w", result.ID, err)
	}
	if result.Error != nil && result.Error.Message != "" {
		said.Message += " (" + result.Error.Message + ")"
	}
	result.Error = &said
	return nil
}
