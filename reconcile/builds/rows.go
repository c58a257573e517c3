package builds

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// States of a build that has no result yet; afterwards its outcome is its state.
const (
	stateQueued  = "queued"
	stateRunning = "running"
	stateEnding  = "cancelling"
)

const buildColumns = `id, repository, path, ref, module, outcome, result, digest, commit, noticed_commit, noticed_tree <> '' AND tree <> '' AND tree <> noticed_tree, builder, requested_at, started_at, ended_at, cancelled_at IS NOT NULL`

func scanBuild(row pgx.CollectableRow) (api.Build, error) {
	var b api.Build
	var result []byte
	var started, ended *time.Time
	var cancelled bool
	err := row.Scan(&b.ID, &b.Repository, &b.Path, &b.Ref, &b.Module, &b.State, &result, &b.Digest, &b.Commit, &b.Noticed, &b.Moved, &b.Builder,
		&b.Requested, &started, &ended, &cancelled)
	if err != nil {
		return b, err
	}
	if started != nil {
		b.Started = *started
	}
	if ended != nil {
		b.Ended = *ended
	}
	switch {
	case b.State == "" && cancelled:
		b.State = stateEnding
	case b.State == "" && started != nil:
		b.State = stateRunning
	case b.State == "":
		b.State = stateQueued
	}
	if len(result) > 0 {
		var r schema.Result
		if err := json.Unmarshal(result, &r); err != nil {
			return b, fmt.Errorf("result of build %s: %w", b.ID, err)
		}
		b.Error, b.Phases, b.Reproducible, b.Provenance = r.Error, r.Phases, r.Reproducible, r.Provenance
	}
	return b, nil
}

func list(ctx context.Context, q inventory.Queryer, where string, args ...any) ([]api.Build, error) {
	rows, err := q.Query(ctx, `SELECT `+buildColumns+` FROM mesh.builds `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read builds: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanBuild)
	if err != nil {
		return nil, fmt.Errorf("read builds: %w", err)
	}
	return out, nil
}

func (b *Builds) list(ctx context.Context, q inventory.Queryer, in api.BuildListIn) (api.BuildListOut, error) {
	limit := in.Limit
	if limit <= 0 {
		limit = 50
	}
	builds, err := list(ctx, q, `WHERE $1 = '' OR module = $1 ORDER BY requested_at DESC, id LIMIT $2`, in.Module, limit)
	if builds == nil {
		builds = []api.Build{}
	}
	return api.BuildListOut{Builds: builds}, err
}

// find is the build with an id, or a unique prefix of one.
func find(ctx context.Context, q inventory.Queryer, id string) (api.Build, error) {
	if id == "" {
		return api.Build{}, &api.Error{Code: api.CodeInvalidInput, Message: "no build was named", Remedy: "mesh builds"}
	}
	prefix := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(id) + "%"
	found, err := list(ctx, q, `WHERE id LIKE $1 ORDER BY id LIMIT 2`, prefix)
	switch {
	case err != nil:
		return api.Build{}, err
	case len(found) == 0:
		return api.Build{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no build %s", id), Remedy: "mesh builds"}
	case len(found) > 1 && found[0].ID != id:
		return api.Build{}, &api.Error{Code: api.CodeInvalidInput, Message: fmt.Sprintf("several builds begin with %s", id), Remedy: "mesh builds"}
	}
	return found[0], nil
}

func (b *Builds) show(ctx context.Context, q inventory.Queryer, in api.BuildShowIn) (api.BuildShowOut, error) {
	var out api.BuildShowOut
	var err error
	if out.Build, err = find(ctx, q, in.ID); err != nil {
		return out, err
	}
	var document []byte
	err = q.QueryRow(ctx, `SELECT log, artifacts FROM mesh.builds WHERE id = $1`, out.Build.ID).Scan(&out.Log, &document)
	if err != nil {
		return out, fmt.Errorf("read build %s: %w", out.Build.ID, err)
	}
	if len(document) > 0 {
		err = json.Unmarshal(document, &out.Artifacts)
	}
	return out, err
}

// Last is the last build of a module that was asked for, nil if there was none.
func (b *Builds) Last(ctx context.Context, q inventory.Queryer, module string) (*api.Build, error) {
	found, err := list(ctx, q, `WHERE module = $1 ORDER BY requested_at DESC LIMIT 1`, module)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// Of lists the builds that made a manifest, or were made of a commit, or have an id; each
// given as its first digits. Newest first, at most a hundred.
func (b *Builds) Of(ctx context.Context, q inventory.Queryer, digits string) ([]api.Build, error) {
	return list(ctx, q, `
WHERE starts_with(commit, $1) OR starts_with(digest, 'sha256:' || $1) OR starts_with(id, $1) ORDER BY requested_at DESC LIMIT 100`, digits)
}
