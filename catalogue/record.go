package catalogue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/git"
)

// readingRules is the version of how a module.json is found and judged. Raise it when a
// verdict may change, and every repository is read once more.
const readingRules = 1

// changesKept is how long wake-ups are kept; a reader further behind reads the tables.
const changesKept = "90 days"

// stateNew is a repository that was added and not looked at yet.
const stateNew = "new"

// repository is one of catalogue.repositories as a loop last loaded it.
type repository struct {
	ID          int64
	URL         string
	Ref         string
	Watch       string
	State       string
	Message     string
	HeadRef     string
	Commit      string
	Reader      int
	LastChecked time.Time
	LastSuccess time.Time
	Refresh     time.Time
	Suspended   bool
	Removed     bool
}

const repositoryColumns = `id, url, ref, watch, state, message, coalesce(head_ref, ''), coalesce(commit, ''), reader,
  coalesce(last_checked, 'epoch'), coalesce(last_success, 'epoch'), coalesce(refresh_requested, 'epoch'), suspended, removed`

func scanRepository(r pgx.Row) (repository, error) {
	var x repository
	err := r.Scan(&x.ID, &x.URL, &x.Ref, &x.Watch, &x.State, &x.Message, &x.HeadRef, &x.Commit, &x.Reader,
		&x.LastChecked, &x.LastSuccess, &x.Refresh, &x.Suspended, &x.Removed)
	return x, err
}

// loadRepositories is all there is to poll, and what was removed and still has sources.
func (s *Service) loadRepositories(ctx context.Context) ([]repository, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+repositoryColumns+` FROM catalogue.repositories r
WHERE NOT removed OR EXISTS (SELECT FROM catalogue.sources s WHERE s.repository_id = r.id AND s.state <> 'removed')
ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("load repositories: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (repository, error) { return scanRepository(r) })
	if err != nil {
		return nil, fmt.Errorf("load repositories: %w", err)
	}
	return list, nil
}

func (s *Service) loadRepository(ctx context.Context, id int64) (repository, error) {
	r, err := scanRepository(s.pool.QueryRow(ctx, `SELECT `+repositoryColumns+` FROM catalogue.repositories WHERE id = $1`, id))
	if err != nil {
		return r, fmt.Errorf("load repository %d: %w", id, err)
	}
	return r, nil
}

// loadTrees maps the paths at which a repository's modules stand to their trees.
func (s *Service) loadTrees(ctx context.Context, id int64) (map[string]string, error) {
	rows, err := s.pool.Query(ctx, `SELECT path, tree FROM catalogue.sources WHERE repository_id = $1 AND state <> 'removed'`, id)
	if err != nil {
		return nil, fmt.Errorf("load sources of repository %d: %w", id, err)
	}
	trees := map[string]string{}
	var path, tree string
	_, err = pgx.ForEachRow(rows, []any{&path, &tree}, func() error {
		trees[path] = tree
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load sources of repository %d: %w", id, err)
	}
	return trees, nil
}

// errOvertaken: the repository's row is not as it was when the read began; read again.
var errOvertaken = errors.New("the repository changed while it was read")

// lockRepository holds the row of base until the transaction ends, if nobody changed what
// the read rests on. It then takes the one lock under which names are settled.
func lockRepository(ctx context.Context, tx pgx.Tx, base repository) error {
	now, err := scanRepository(tx.QueryRow(ctx, `SELECT `+repositoryColumns+` FROM catalogue.repositories WHERE id = $1 FOR NO KEY UPDATE`, base.ID))
	if err != nil {
		return err
	}
	if now.Commit != base.Commit || now.Ref != base.Ref || now.Removed != base.Removed || now.Suspended != base.Suspended {
		return errOvertaken
	}
	_, err = tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('catalogue.names'))`)
	return err
}

// record writes what a commit holds: sources, conflicts, the repository's commit and the
// wake-up, in one transaction. The commit never moves forward without them.
func (s *Service) record(ctx context.Context, base repository, head git.Head, at time.Time, found comparison) (report, error) {
	var told report
	err := s.pool.Tx(ctx, func(tx pgx.Tx) error {
		if err := lockRepository(ctx, tx, base); err != nil {
			return err
		}
		now, err := databaseNow(ctx, tx)
		if err != nil {
			return err
		}
		c := commit{Repository: base.ID, URL: base.URL, Hash: head.Commit, CommittedAt: at, Now: now}
		if told, err = applyPlan(ctx, tx, c, found); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE catalogue.repositories SET state = 'ok', message = '', head_ref = $2, commit = $3,
committed_at = $4, reader = $5, last_checked = $6, last_success = $6, modules = $7 WHERE id = $1`,
			base.ID, head.Ref, head.Commit, at, readingRules, now, found.modules); err != nil {
			return err
		}
		return wake(ctx, tx, "sources", base.URL, struct {
			From   string `json:"from,omitempty"`
			Commit string `json:"commit"`
			Ref    string `json:"ref"`
			report
		}{base.Commit, head.Commit, head.Ref, told})
	})
	if err != nil {
		return told, fmt.Errorf("record commit %s of %s: %w", short(head.Commit), base.URL, err)
	}
	return told, nil
}

// recordUnwatched marks the sources of a removed repository as removed, and nothing else.
func (s *Service) recordUnwatched(ctx context.Context, base repository) error {
	trees, err := s.loadTrees(ctx, base.ID)
	if err != nil {
		return err
	}
	all := comparison{places: slices.Collect(maps.Keys(trees))}
	err = s.pool.Tx(ctx, func(tx pgx.Tx) error {
		if err := lockRepository(ctx, tx, base); err != nil {
			return err
		}
		now, err := databaseNow(ctx, tx)
		if err != nil {
			return err
		}
		told, err := applyPlan(ctx, tx, commit{Repository: base.ID, URL: base.URL, Now: now, Unwatched: true}, all)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE catalogue.repositories SET modules = 0 WHERE id = $1`, base.ID); err != nil {
			return err
		}
		return wake(ctx, tx, "sources", base.URL, told)
	})
	if err != nil {
		return fmt.Errorf("record removal of %s: %w", base.URL, err)
	}
	return nil
}

// recordState writes a repository's state and wakes whoever shows it. touched only brings
// the times up to date.
func (s *Service) recordState(ctx context.Context, base repository, state, message string, touched bool) error {
	err := s.pool.Tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE catalogue.repositories SET state = $2, message = $3, last_checked = catalogue.mesh_now(),
last_success = CASE WHEN $2 = 'ok' THEN catalogue.mesh_now() ELSE last_success END
WHERE id = $1 AND ref = $4 AND NOT removed`, base.ID, state, message, base.Ref)
		if err != nil || touched || tag.RowsAffected() == 0 {
			return err
		}
		return wake(ctx, tx, "repository", base.URL, map[string]string{"state": state, "message": message})
	})
	if err != nil {
		return fmt.Errorf("record state of %s: %w", base.URL, err)
	}
	return nil
}

// wake appends a wake-up. The notification only saves its reader a wait.
func wake(ctx context.Context, tx pgx.Tx, kind, subject string, data any) error {
	encoded, err := json.Marshal(data)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO catalogue.changes (kind, subject, data) VALUES ($1, $2, $3);`, kind, subject, encoded)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT pg_notify('catalogue_changes', $1)`, kind)
	return err
}

func databaseNow(ctx context.Context, tx pgx.Tx) (time.Time, error) {
	var now time.Time
	err := tx.QueryRow(ctx, `SELECT catalogue.mesh_now()`).Scan(&now)
	return now, err
}

const sourceColumns = `s.id, s.module, s.holder, s.repository_id, r.url, s.path, s.commit, s.tree, s.blob, s.document, s.error, s.state,
  coalesce(s.committed_at, 'epoch'), s.seen_at`

// loadSources is what [plan] asks for. It is as much as the commit changed, however many modules
// the repository has.
func loadSources(ctx context.Context, tx pgx.Tx, id int64, found comparison) ([]*row, error) {
	names := []string{}
	for _, r := range found.readings {
		if r.Module != "" {
			names = append(names, r.Module)
		}
	}
	rows, err := tx.Query(ctx, `
WITH places AS (SELECT id, module FROM catalogue.sources WHERE repository_id = $1 AND path = ANY ($2) AND state <> 'removed'),
wanted AS (
  SELECT id FROM places
  UNION SELECT id FROM catalogue.sources WHERE module = ANY ($3)
  UNION SELECT namesake.id FROM places p JOIN catalogue.sources namesake ON namesake.module = p.module AND p.module <> '')
SELECT `+sourceColumns+` FROM wanted JOIN catalogue.sources s USING (id) JOIN catalogue.repositories r ON r.id = s.repository_id
ORDER BY s.id`, id, found.places, names)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (*row, error) {
		var x row
		err := r.Scan(&x.ID, &x.Module, &x.Holder, &x.Repository, &x.URL, &x.Path, &x.Commit, &x.Tree, &x.Blob,
			(*[]byte)(&x.Document), &x.Error, &x.State, &x.CommittedAt, &x.SeenAt)
		return &x, err
	})
}

// applyPlan plans and writes. Rows written again are deleted first and keep their id, so that
// no order of updates can meet the unique indexes half way (two paths may swap names).
func applyPlan(ctx context.Context, tx pgx.Tx, c commit, found comparison) (report, error) {
	rows, err := loadSources(ctx, tx, c.Repository, found)
	if err != nil {
		return report{}, err
	}
	decided := plan(c, rows, found.readings)
	ids := decided.Delete
	for _, r := range decided.Write {
		if r.ID != 0 {
			ids = append(ids, r.ID)
		}
	}
	if len(ids) > 0 {
		if _, err := tx.Exec(ctx, `DELETE FROM catalogue.sources WHERE id = ANY ($1)`, ids); err != nil {
			return report{}, err
		}
	}
	batch := &pgx.Batch{}
	for _, r := range decided.Write {
		batch.Queue(`INSERT INTO catalogue.sources
(id, module, holder, repository_id, path, commit, tree, blob, document, error, state, committed_at, seen_at)
VALUES (coalesce(nullif($1::bigint, 0), nextval(pg_get_serial_sequence('catalogue.sources', 'id'))),
  $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
			r.ID, r.Module, r.Holder, r.Repository, r.Path, r.Commit, r.Tree, r.Blob, []byte(r.Document), r.Error, r.State, r.CommittedAt, r.SeenAt)
	}
	if batch.Len() > 0 {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return report{}, err
		}
	}
	return decided.Report, nil
}

func (s *Service) prune(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `DELETE FROM catalogue.changes WHERE at < catalogue.mesh_now() - $1::interval`, changesKept)
	if err != nil {
		return fmt.Errorf("prune changes: %w", err)
	}
	if _, err = s.pool.Exec(ctx, `DELETE FROM catalogue.hooks WHERE last_at < catalogue.mesh_now() - $1::interval`, noticesKept); err != nil {
		return fmt.Errorf("prune counts of notices: %w", err)
	}
	return nil
}
