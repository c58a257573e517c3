package builds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

const (
	// upstreamWait bounds one question to an outside registry.
	upstreamWait = time.Minute
	// upstreamsAtOnce is how many are asked beside each other: one that is slow delays no other.
	upstreamsAtOnce = 4
)

// Upstreams tells what a reference means now, outside or as it was carried in.
type Upstreams interface {
	ResolveUpstream(ctx context.Context, reference string) (digest string, err error)
	Close()
}

// borrowed are the references by tag that a manifest was built from, with what each meant. One
// by digest means the same for ever.
func borrowed(manifest *schema.Manifest) map[string]string {
	found := map[string]string{}
	for _, artifact := range manifest.Artifacts {
		if up := artifact.Upstream; up != nil && !strings.Contains(up.Reference, "@") {
			found[up.Reference] = up.Digest
		}
	}
	return found
}

// lookUpstreams asks what every tag that the mesh borrows means now.
func (b *Builds) lookUpstreams(ctx context.Context, run *extension.Run, _ string) (string, error) {
	manifests, err := inventory.Manifests(ctx, run.Store)
	if err != nil {
		return "", err
	}
	all := map[string]string{}
	for _, row := range manifests {
		maps.Copy(all, borrowed(&row.Document))
	}
	references := slices.Sorted(maps.Keys(all))
	var now time.Time
	err = run.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM mesh.upstreams WHERE reference <> ALL($1)`, references)
		return errors.Join(err, tx.QueryRow(ctx, `SELECT mesh.mesh_now()`).Scan(&now))
	})
	if err != nil || len(references) == 0 {
		return extension.Done, err
	}
	outside, err := b.config.Upstreams()
	if err != nil {
		return "", err
	}
	defer outside.Close()
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(upstreamsAtOnce)
	for _, reference := range references {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(asking, upstreamWait)
			digest, err := outside.ResolveUpstream(ctx, reference)
			cancel()
			if asking.Err() != nil {
				return asking.Err()
			}
			return run.Tx(asking, func(tx pgx.Tx) error { return recordUpstream(asking, tx, reference, digest, now, err) })
		})
	}
	return extension.Done, group.Wait()
}

// recordUpstream keeps an answer, or beside the last answer why there is no newer one. An answer
// is of the moment it was asked for: a build that began later knows better.
func recordUpstream(ctx context.Context, tx pgx.Tx, reference, digest string, asked time.Time, failed error) error {
	var err error
	if failed != nil {
		_, err = tx.Exec(ctx, `
INSERT INTO mesh.upstreams AS u (reference, error, failing_since) VALUES ($1, $2, $3)
ON CONFLICT (reference) DO UPDATE SET error = $2, failing_since = coalesce(u.failing_since, $3)`, reference, storable(failed.Error()), asked)
	} else {
		_, err = tx.Exec(ctx, `
INSERT INTO mesh.upstreams (reference, digest, looked_at) VALUES ($1, $2, $3)
ON CONFLICT (reference) DO UPDATE SET digest = $2, looked_at = $3, error = '', failing_since = NULL`, reference, digest, asked)
	}
	if err != nil {
		return fmt.Errorf("record upstream %s: %w", reference, err)
	}
	return nil
}

// upstream is what a tag meant at a moment.
type upstream struct {
	digest string
	asked  time.Time
}

func readUpstreams(ctx context.Context, q inventory.Queryer) (map[string]upstream, error) {
	rows, err := q.Query(ctx, `SELECT reference, digest, looked_at FROM mesh.upstreams WHERE digest <> ''`)
	if err != nil {
		return nil, fmt.Errorf("read upstreams: %w", err)
	}
	found := map[string]upstream{}
	var reference string
	var seen upstream
	_, err = pgx.ForEachRow(rows, []any{&reference, &seen.digest, &seen.asked}, func() error {
		found[reference] = seen
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read upstreams: %w", err)
	}
	return found, nil
}

// moved are the tags that meant something else when a manifest was built.
func moved(row inventory.ManifestRow, now map[string]upstream) []catalogue.Moved {
	was := borrowed(&row.Document)
	var found []catalogue.Moved
	for _, reference := range slices.Sorted(maps.Keys(was)) {
		seen, ok := now[reference]
		if ok && seen.digest != was[reference] && seen.asked.After(row.Recorded) {
			found = append(found, catalogue.Moved{Reference: reference, Was: was[reference], Now: seen.digest})
		}
	}
	return found
}

// checkUpstreams finds the tags of which nobody could be asked for a day: their modules would
// not be told to be behind.
func checkUpstreams(ctx context.Context, q inventory.Queryer) ([]api.Finding, error) {
	var count int
	var reference, why string
	err := q.QueryRow(ctx, `
SELECT count(*), coalesce(min(reference), ''), coalesce((array_agg(error ORDER BY reference))[1], '')
FROM mesh.upstreams WHERE failing_since < mesh.mesh_now() - interval '1 day'`).Scan(&count, &reference, &why)
	if err != nil {
		return nil, fmt.Errorf("read upstreams: %w", err)
	}
	if count == 0 {
		return nil, nil
	}
	return []api.Finding{{
		Check: "builds.upstreams", Severity: extension.SeverityInfo, Count: count,
		Message: fmt.Sprintf("what upstream tags mean now is not known since a day or more, of %s: %s", reference, why),
		Fix:     "let the controller's node reach that registry, carry the image in, or set upstream-interval to 0 where there is no outside",
	}}, nil
}
