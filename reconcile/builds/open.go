package builds

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// openBuild is a build of a place that has no result yet.
type openBuild struct {
	id      string
	job     schema.Job
	started time.Time
}

// openAt lists the open builds of the place a job is for, oldest first. It takes the place's
// lock, so that two requests at once do not both find none.
func openAt(ctx context.Context, tx pgx.Tx, job schema.Job) ([]openBuild, error) {
	place := job.Repository + "\n" + job.Path + "\n" + job.Ref
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('build ' || $1, 0))`, place); err != nil {
		return nil, fmt.Errorf("read open builds: %w", err)
	}
	rows, err := tx.Query(ctx, `
SELECT id, job, started_at FROM mesh.builds
WHERE outcome = '' AND cancelled_at IS NULL AND repository = $1 AND path = $2 AND ref = $3 ORDER BY requested_at, id`, job.Repository, job.Path, job.Ref)
	if err != nil {
		return nil, fmt.Errorf("read open builds: %w", err)
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (openBuild, error) {
		var b openBuild
		var document []byte
		var started *time.Time
		if err := row.Scan(&b.id, &document, &started); err != nil {
			return b, err
		}
		if started != nil {
			b.started = *started
		}
		return b, json.Unmarshal(document, &b.job)
	})
	if err != nil {
		return nil, fmt.Errorf("read open builds: %w", err)
	}
	return open, nil
}

// ask records a build, or joins one of the same place that will give the same: the ref is
// resolved when a build begins, so one that waits will see whatever this one would, and one
// that began after the catalogue saw the source's commit has seen it. A waiting build that
// would give something else is superseded.
func (b *Builds) ask(ctx context.Context, c *extension.Context, tx pgx.Tx, caller string, job wanted) (api.Build, error) {
	open, err := openAt(ctx, tx, job.Job)
	if err != nil {
		return api.Build{}, err
	}
	var superseded []string
	for _, other := range open {
		same := other.job.Verify == job.Verify && other.job.Recipe == job.Recipe
		current := other.started.IsZero() || !job.seen.IsZero() && other.started.After(job.seen)
		switch {
		case same && current:
			build, err := find(ctx, tx, other.id)
			build.Joined = true
			return build, err
		case other.started.IsZero():
			superseded = append(superseded, other.id)
		}
	}
	if err := b.supersede(ctx, c, tx, job.ID, superseded); err != nil {
		return api.Build{}, err
	}
	return b.record(ctx, c, tx, caller, job)
}

// supersedeOlder ends the builds of the same place that were asked for before one that has
// just succeeded: whatever they give, it would not be taken.
func (b *Builds) supersedeOlder(ctx context.Context, c *extension.Context, tx pgx.Tx, result schema.Result, requested time.Time) error {
	if result.Outcome != schema.OutcomeBuilt && result.Outcome != schema.OutcomeUnchanged {
		return nil
	}
	rows, err := tx.Query(ctx, `
SELECT o.id FROM mesh.builds o JOIN mesh.builds n ON n.id = $1
WHERE o.outcome = '' AND o.repository = n.repository AND o.path = n.path AND o.ref = n.ref AND o.requested_at < $2 AND o.id <> n.id`, result.ID, requested)
	if err != nil {
		return fmt.Errorf("read superseded builds: %w", err)
	}
	older, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read superseded builds: %w", err)
	}
	return b.supersede(ctx, c, tx, result.ID, older)
}
