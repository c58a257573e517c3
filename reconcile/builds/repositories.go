package builds

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
)

// noCatalogue is answered while the catalogue has made no tables.
func noCatalogue() error {
	return &api.Error{
		Code: api.CodeUnavailable, Message: "the catalogue has not started yet",
		Remedy: "see that the module catalogue runs: mesh status",
	}
}

func addRepository(ctx context.Context, tx pgx.Tx, in api.RepositoryAddIn) (api.Repository, error) {
	ready, err := hasTable(ctx, tx, sourcesTable)
	if err != nil {
		return api.Repository{}, err
	}
	if !ready {
		return api.Repository{}, noCatalogue()
	}
	_, err = tx.Exec(ctx, `SELECT catalogue.request_add_repository($1, $2, $3)`, in.URL, in.Ref, in.Watch)
	if err != nil {
		return api.Repository{}, refusedBy(err, "add repository")
	}
	all, err := repositories(ctx, tx, in.URL)
	if err != nil || len(all) == 0 {
		return api.Repository{URL: in.URL, Ref: in.Ref, Watch: in.Watch, State: "new"}, err
	}
	return all[0], nil
}

// refusedBy gives the words in which the catalogue's functions refuse.
func refusedBy(err error, doing string) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22023" {
		return &api.Error{Code: api.CodeInvalidInput, Message: pg.Message}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// requestRepository calls one of the catalogue's functions about a repository; arguments are
// what it takes after the URL.
func requestRepository(ctx context.Context, tx pgx.Tx, function, url string, arguments ...any) error {
	ready, err := hasTable(ctx, tx, sourcesTable)
	if err != nil {
		return err
	}
	if !ready {
		return noCatalogue()
	}
	var known bool
	call := `SELECT catalogue.` + function + `($1`
	for i := range arguments {
		call += fmt.Sprintf(", $%d", i+2)
	}
	if err := tx.QueryRow(ctx, call+`)`, append([]any{url}, arguments...)...).Scan(&known); err != nil {
		return refusedBy(err, function)
	}
	if !known {
		return &api.Error{Code: api.CodeNotFound, Message: "the mesh watches no repository " + url, Remedy: "mesh repo ls"}
	}
	return nil
}

func listRepositories(ctx context.Context, q inventory.Queryer) (api.RepositoryListOut, error) {
	var out api.RepositoryListOut
	var err error
	if out.Repositories, err = Repositories(ctx, q); err != nil {
		return out, err
	}
	out.Notices, err = StrayNotices(ctx, q)
	return out, err
}

// Repositories lists what the catalogue watches, by URL.
func Repositories(ctx context.Context, q inventory.Queryer) ([]api.Repository, error) {
	ready, err := hasTable(ctx, q, sourcesTable)
	if err != nil || !ready {
		return []api.Repository{}, err
	}
	return repositories(ctx, q, "")
}

func repositories(ctx context.Context, q inventory.Queryer, url string) ([]api.Repository, error) {
	rows, err := q.Query(ctx, `
SELECT url, ref, watch, CASE WHEN suspended THEN 'suspended' ELSE state END, message, coalesce(commit, ''),
  modules, last_checked, last_success
FROM catalogue.repositories WHERE NOT removed AND ($1 = '' OR url = $1) ORDER BY url`, url)
	if err != nil {
		return nil, fmt.Errorf("read repositories: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (api.Repository, error) {
		var r api.Repository
		var checked, success *time.Time
		err := row.Scan(&r.URL, &r.Ref, &r.Watch, &r.State, &r.Message, &r.Commit, &r.Modules, &checked, &success)
		if checked != nil {
			r.LastChecked = *checked
		}
		if success != nil {
			r.LastSuccess = *success
		}
		r.Remedy = remedy(r)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("read repositories: %w", err)
	}
	if out == nil {
		out = []api.Repository{}
	}
	return out, errors.Join(readCredentials(ctx, q, out), readHooks(ctx, q, out))
}

// stateSuspended is shown of a repository in place of what it was in when it was suspended.
const stateSuspended = "suspended"

// remedies are what to do about a repository's state, in which URL stands for its address.
// A state that needs nobody has none.
var remedies = map[string]string{
	"AuthenticationFailed": "give what it is read with: mesh repo credential URL --token-file F, or --ssh-key F --known-hosts F",
	"HostKeyUnknown":       "check the server's host key with its owner, then mesh repo credential URL --ssh-key F --known-hosts F",
	"RefNotFound":          "name a branch, tag or commit it has: mesh repo add URL --ref R",
	"RepositoryNotFound":   "check the address, and whether the credential may see it: mesh repo credential URL",
	"EmptyRepository":      "push a first commit; it is seen by itself",
	"TooLarge":             "raise the catalogue's --max-bytes, or split the repository",
	"Unreachable":          "see that the catalogue's machine reaches it; it is asked again by itself",
	"Unreadable":           "run git fsck on its server; it is read again by itself",
	stateSuspended:         "mesh repo resume URL",
	"Invalid":              "mesh repo rm URL, and add it under an address the mesh reads",
}

func remedy(r api.Repository) string {
	return strings.ReplaceAll(remedies[r.State], "URL", r.URL)
}
