package builds

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// maxLog is how much of a log is kept, in bytes.
const maxLog = 64 << 10

// errRefused wraps why a result is not believed.
var errRefused = errors.New("result refused")

// onResult records a result from the exchange. What is not a builder's, or answers nothing
// that was asked, is recorded as refused and is done with; a database that is away keeps the
// message on the queue.
func (b *Builds) onResult(ctx context.Context, d bus.Delivery) error {
	builder, err := d.Builder()
	if err != nil {
		return b.refuse(ctx, d, err.Error())
	}
	result, err := schema.ParseResult("result", d.Body)
	if err != nil {
		return b.refuse(ctx, d, err.Error())
	}
	if result.ID != d.CorrelationID {
		return b.refuse(ctx, d, fmt.Sprintf("it answers %q under the correlation %q", result.ID, d.CorrelationID))
	}
	err = b.host.Transact(ctx, func(tx pgx.Tx) error {
		if err := b.Record(ctx, b.host, tx, builder, *result); err != nil {
			return err
		}
		return noteAnswer(ctx, b.host, tx, result.ID)
	})
	if errors.Is(err, errRefused) {
		return b.refuse(ctx, d, err.Error())
	}
	if err != nil {
		return retry(ctx, err)
	}
	b.news.tell(result.ID, nil)
	return nil
}

// retry leaves a message on its queue. A database that is away is waited for here, because
// every delivery counts against the queue's patience.
func retry(ctx context.Context, err error) error {
	if store.Unreachable(err) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return bus.Requeue(err)
}

// refuse records a message that is not what it claims to be.
func (b *Builds) refuse(ctx context.Context, d bus.Delivery, reason string) error {
	return inventory.Refuse(ctx, b.host.Store, d, reason)
}

// Record records a build's one result. The first one stands; the same or another for the
// same id changes nothing.
func (b *Builds) Record(ctx context.Context, c *extension.Context, tx pgx.Tx, builder string, result schema.Result) error {
	var repository, path, outcome string
	var requested time.Time
	err := tx.QueryRow(ctx, `SELECT repository, path, outcome, requested_at FROM mesh.builds WHERE id = $1 FOR UPDATE`, result.ID).
		Scan(&repository, &path, &outcome, &requested)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: no build %s was asked for", errRefused, result.ID)
	case err != nil:
		return fmt.Errorf("record result of %s: %w", result.ID, err)
	case outcome != "":
		return nil
	}
	if result.Outcome == schema.OutcomeRefused && result.Repository == "" && result.Path == "" {
		// The builder could not read the job, so it cannot say what the job was for.
		result.Repository, result.Path = repository, path
	}
	if result.Repository != repository || result.Path != path {
		return fmt.Errorf("%w: build %s was asked for %s %s, not for %s %s", errRefused, result.ID, repository, path, result.Repository, result.Path)
	}
	if m := result.Manifest; m != nil && (m.Source.Repository != repository || m.Source.Path != path || m.Module != result.Module) {
		return fmt.Errorf("%w: the manifest of build %s is of another source", errRefused, result.ID)
	}
	if err := cancelledBecause(ctx, tx, &result); err != nil {
		return err
	}
	if err := writeResult(ctx, tx, builder, result); err != nil {
		return err
	}
	if err := b.supersedeOlder(ctx, c, tx, result, requested); err != nil {
		return err
	}
	return b.adopt(ctx, c, tx, result, requested)
}

func writeResult(ctx context.Context, tx pgx.Tx, builder string, result schema.Result) error {
	kept := result
	kept.Manifest, kept.Log = nil, ""
	log := result.Log
	if len(log) > maxLog {
		log = log[len(log)-maxLog:]
	}
	var artifacts map[string]schema.Built
	if result.Manifest != nil {
		artifacts = result.Manifest.Artifacts
	}
	_, err := tx.Exec(ctx, `
UPDATE mesh.builds SET outcome = $2, result = $3, log = $4, artifacts = $5, digest = $6, commit = $7, tree = $8,
  module = CASE WHEN $9 <> '' THEN $9 ELSE module END, builder = $10, started_at = $11, ended_at = $12,
  recipe = CASE WHEN $13 <> '' THEN $13 ELSE recipe END, recorded_at = mesh.mesh_now()
WHERE id = $1`,
		result.ID, string(result.Outcome), kept, storable(log), artifacts, result.Digest, result.Commit, result.Tree,
		result.Module, builder, result.Started, result.Ended, recipeOf(result))
	if err != nil {
		return fmt.Errorf("record result of %s: %w", result.ID, err)
	}
	return nil
}

// storable drops what a text column cannot hold.
func storable(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
}

func recipeOf(result schema.Result) string {
	if result.Manifest != nil {
		return result.Manifest.Recipe
	}
	return ""
}

// adopt makes a new manifest the one the mesh holds, unless the name belongs to another
// place or a build asked for later has spoken already.
func (b *Builds) adopt(ctx context.Context, c *extension.Context, tx pgx.Tx, result schema.Result, requested time.Time) error {
	if result.Manifest == nil || result.Outcome != schema.OutcomeBuilt && result.Outcome != schema.OutcomeUnchanged {
		return nil
	}
	current, err := inventory.Manifests(ctx, tx)
	if err != nil {
		return err
	}
	held, holds := current[result.Module]
	if holds && held.Digest == result.Digest || holds && result.Outcome == schema.OutcomeUnchanged {
		return nil
	}
	if holds {
		var later bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM mesh.builds WHERE id = $1 AND requested_at > $2)`, held.Build, requested).Scan(&later)
		if err != nil || later {
			return err
		}
	}
	mine, err := b.holdsName(ctx, tx, result, held, holds)
	if err != nil || !mine {
		return err
	}
	if err := inventory.RecordManifest(ctx, tx, result.Digest, *result.Manifest, result.ID); err != nil {
		return err
	}
	if err := c.Events.Publish(ctx, tx, extension.Event{Type: "build.published", Subject: result.Module, Data: map[string]string{
		"build": result.ID, "digest": result.Digest, "commit": result.Commit,
	}}); err != nil {
		return err
	}
	return inventory.InvalidateAll(ctx, c, tx)
}

// holdsName says whether the built place is the one that holds the module's name: as the
// catalogue has it, or, where no watched repository has the name, as the mesh has it.
func (b *Builds) holdsName(ctx context.Context, tx pgx.Tx, result schema.Result, held inventory.ManifestRow, holds bool) (bool, error) {
	f := &facts{modules: map[string]*moduleFacts{}, refs: map[string]string{}}
	if err := readSources(ctx, tx, f); err != nil {
		return false, err
	}
	if m := f.modules[result.Module]; m != nil {
		return m.repository == result.Repository && m.path == result.Path, nil
	}
	source := held.Document.Source
	return !holds || source.Repository == result.Repository && source.Path == result.Path, nil
}

// onDead makes a failed result of a job that no builder survived.
func (b *Builds) onDead(ctx context.Context, d bus.Delivery) error {
	now := b.host.Clock.Now()
	err := b.host.Transact(ctx, func(tx pgx.Tx) error {
		var result schema.Result
		err := tx.QueryRow(ctx, `SELECT id, repository, path, ref, module FROM mesh.builds WHERE id = $1`, d.CorrelationID).
			Scan(&result.ID, &result.Repository, &result.Path, &result.Ref, &result.Module)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: no build %s was asked for", errRefused, d.CorrelationID)
		}
		if err != nil {
			return err
		}
		result.Schema, result.Outcome, result.Started, result.Ended = schema.Version, schema.OutcomeFailed, now, now
		result.Error = &schema.BuildError{
			Reason:  "BuildersLost",
			Message: fmt.Sprintf("every builder that took it was lost before it answered (%d deliveries)", bus.DeliveryLimit),
			Remedy:  "look at the builders' logs, then mesh build --behind --retry",
		}
		return b.Record(ctx, b.host, tx, "", result)
	})
	if errors.Is(err, errRefused) {
		return b.refuse(ctx, d, err.Error())
	}
	if err != nil {
		return retry(ctx, err)
	}
	b.news.tell(d.CorrelationID, nil)
	return nil
}

// Adopt records a result that was asked for before there was a controller, with the manifest
// it made. One that is recorded already is left.
func Adopt(ctx context.Context, tx pgx.Tx, by string, result schema.Result) error {
	job := schema.Job{Schema: schema.Version, ID: result.ID, Repository: result.Repository, Path: result.Path, Ref: result.Ref, Module: result.Module}
	made, err := tx.Exec(ctx, `
INSERT INTO mesh.builds (id, repository, path, ref, module, job, recipe, requested_by, requested_at, published_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9) ON CONFLICT (id) DO NOTHING`,
		result.ID, result.Repository, result.Path, result.Ref, result.Module, job, recipeOf(result), by, result.Started)
	if err != nil {
		return fmt.Errorf("record build %s: %w", result.ID, err)
	}
	if made.RowsAffected() == 0 {
		return nil
	}
	if err := writeResult(ctx, tx, by, result); err != nil {
		return err
	}
	if result.Manifest == nil {
		return nil
	}
	return inventory.RecordManifest(ctx, tx, result.Digest, *result.Manifest, result.ID)
}
