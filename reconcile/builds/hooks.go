package builds

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue/notice"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
)

// hookKind stands where a credential's kind does.
const hookKind = "hmac-sha256"

// setHook seals the secret of a repository's webhook to the keys of the catalogue. Nothing
// keeps the plaintext, and the secret before it is not taken any more.
func setHook(ctx context.Context, tx pgx.Tx, in api.RepositoryHookIn) (api.RepositoryHookOut, error) {
	out := api.RepositoryHookOut{URL: in.URL, Addresses: []string{}}
	if err := notice.CheckSecret(in.Secret); err != nil {
		return out, &api.Error{Code: api.CodeInvalidInput, Message: err.Error(), Remedy: "mesh repo hook " + in.URL + " makes one"}
	}
	ready, err := hasTable(ctx, tx, instancesTable)
	if err != nil {
		return out, err
	}
	if !ready {
		return out, noCatalogue()
	}
	if !in.Rotate {
		var given time.Time
		rows, err := tx.Query(ctx, `SELECT c.given_at FROM catalogue.secrets c JOIN catalogue.repositories r ON r.id = c.repository_id
WHERE r.url = $1 AND c.purpose = $2`, in.URL, pki.RepositoryHook)
		if err != nil {
			return out, fmt.Errorf("read the hook of %s: %w", in.URL, err)
		}
		tag, err := pgx.ForEachRow(rows, []any{&given}, func() error { return nil })
		if err != nil {
			return out, fmt.Errorf("read the hook of %s: %w", in.URL, err)
		}
		if tag.RowsAffected() > 0 {
			return out, &api.Error{
				Code:    api.CodeConflict,
				Message: fmt.Sprintf("%s has a hook since %s, whose secret is shown no second time", in.URL, given.UTC().Format(time.RFC3339)),
				Remedy:  "mesh repo hook " + in.URL + " --rotate gives it a new secret; the old one is refused from then on",
			}
		}
	}
	if err := setSecret(ctx, tx, in.URL, pki.RepositoryHook, hookKind, []byte(in.Secret)); err != nil {
		return out, err
	}
	out.Addresses, err = hookAddresses(ctx, tx)
	return out, err
}

// hookAddresses are where the catalogues that live take notices.
func hookAddresses(ctx context.Context, q inventory.Queryer) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT DISTINCT hooks_url FROM catalogue.instances
WHERE hooks_url <> '' AND seen_at > catalogue.mesh_now() - ($1 * greatest(poll, interval '1 minute') + $2::interval) ORDER BY hooks_url`, silentAfter, graceAfter)
	if err != nil {
		return nil, fmt.Errorf("read where notices are taken: %w", err)
	}
	addresses, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read where notices are taken: %w", err)
	}
	return addresses, nil
}

// readHooks tells of each repository whether it has a webhook, and what came by it.
func readHooks(ctx context.Context, q inventory.Queryer, repositories []api.Repository) error {
	ready, err := hasTable(ctx, q, instancesTable)
	if err != nil || !ready {
		return err
	}
	at := map[string]int{}
	for i, r := range repositories {
		at[r.URL] = i
	}
	rows, err := q.Query(ctx, `SELECT r.url, c.given_at FROM catalogue.secrets c JOIN catalogue.repositories r ON r.id = c.repository_id
WHERE c.purpose = $1`, pki.RepositoryHook)
	if err != nil {
		return fmt.Errorf("read hooks: %w", err)
	}
	var url string
	var given time.Time
	_, err = pgx.ForEachRow(rows, []any{&url, &given}, func() error {
		if i, ok := at[url]; ok {
			repositories[i].Hook = &api.RepositoryHookInfo{Given: given}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read hooks: %w", err)
	}
	counts, err := readNotices(ctx, q, `subject IN (SELECT url FROM catalogue.repositories WHERE NOT removed)`)
	if err != nil {
		return err
	}
	for _, c := range counts {
		if i, ok := at[c.Subject]; ok && repositories[i].Hook != nil {
			c.Subject = ""
			repositories[i].Hook.Notices = append(repositories[i].Hook.Notices, c)
		}
	}
	return nil
}

// StrayNotices are those that were of no watched repository, the latest first.
func StrayNotices(ctx context.Context, q inventory.Queryer) ([]api.NoticeCount, error) {
	ready, err := hasTable(ctx, q, instancesTable)
	if err != nil || !ready {
		return nil, err
	}
	return readNotices(ctx, q, `subject NOT IN (SELECT url FROM catalogue.repositories WHERE NOT removed)`)
}

func readNotices(ctx context.Context, q inventory.Queryer, which string) ([]api.NoticeCount, error) {
	rows, err := q.Query(ctx, `SELECT subject, outcome, forge, count, first_at, last_at FROM catalogue.hooks WHERE `+which+` ORDER BY last_at DESC, subject, outcome, forge`)
	if err != nil {
		return nil, fmt.Errorf("read notices: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[api.NoticeCount])
	if err != nil {
		return nil, fmt.Errorf("read notices: %w", err)
	}
	return slices.Clip(counts), nil
}
