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
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
)

// The catalogue's tables, by what has to be there before they are asked. It may be one
// release behind the controller.
const (
	sourcesTable   = "catalogue.sources"
	instancesTable = "catalogue.instances" // and all that its migration made
)

// silentAfter is how many of its intervals the catalogue may say nothing; graceAfter is added
// for what takes time however short the interval is.
const (
	silentAfter = 3
	graceAfter  = time.Minute
)

// hasTable says whether a table of the catalogue is there and may be read.
func hasTable(ctx context.Context, q inventory.Queryer, table string) (bool, error) {
	var ready bool
	err := q.QueryRow(ctx, `SELECT coalesce(has_table_privilege(to_regclass($1), 'SELECT'), false)`, table).Scan(&ready)
	var denied *pgconn.PgError
	if errors.As(err, &denied) && denied.Code == "42501" {
		return false, nil
	}
	return ready, err
}

// Catalogue says whether repositories are being looked at: what is behind is known only as
// far as they are.
func Catalogue(ctx context.Context, q inventory.Queryer) (api.Catalogue, error) {
	ready, err := hasTable(ctx, q, instancesTable)
	if err != nil || !ready {
		return api.Catalogue{State: api.CatalogueAbsent, Message: "no catalogue has started on this mesh's database"}, err
	}
	var spoke *time.Time
	var now time.Time
	var poll time.Duration
	c := api.Catalogue{State: api.CatalogueOK}
	err = q.QueryRow(ctx, `
SELECT led_at, poll, catalogue.mesh_now() FROM catalogue.instances ORDER BY led_at DESC NULLS LAST LIMIT 1`).Scan(&spoke, &poll, &now)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return c, fmt.Errorf("read when the catalogue spoke: %w", err)
	}
	if spoke == nil {
		return api.Catalogue{State: api.CatalogueAbsent, Message: "no catalogue has looked at a repository yet"}, nil
	}
	c.Spoke, c.Poll = *spoke, int(poll.Seconds())
	if silent := now.Sub(*spoke); silent > silentAfter*poll+graceAfter {
		c.State = api.CatalogueSilent
		c.Message = fmt.Sprintf("the catalogue, which looks every %s, has said nothing for %s: commits since then are not known", poll, silent.Round(time.Second))
	}
	return c, nil
}

// checkCatalogue makes findings of a catalogue that is away and of repositories it cannot read.
func checkCatalogue(ctx context.Context, q inventory.Queryer) ([]api.Finding, error) {
	var findings []api.Finding
	state, err := Catalogue(ctx, q)
	if err != nil {
		return nil, err
	}
	if state.State != api.CatalogueOK {
		findings = append(findings, api.Finding{
			Check: "catalogue.silent", Severity: extension.SeverityError, Message: state.Message,
			Fix: "see that the module catalogue runs (mesh why catalogue) and that it reaches the database",
		})
	}
	all, err := Repositories(ctx, q)
	if err != nil {
		return findings, err
	}
	for _, r := range all {
		if r.Remedy == "" {
			continue
		}
		severity := extension.SeverityWarning
		if r.State == stateSuspended {
			severity = extension.SeverityInfo
		}
		findings = append(findings, api.Finding{
			Check: "repository." + r.State, Severity: severity, Message: strings.TrimSuffix(r.URL+": "+r.Message, ": ") + lastRead(r), Fix: r.Remedy,
		})
	}
	return findings, nil
}

func lastRead(r api.Repository) string {
	if r.LastSuccess.IsZero() {
		return "; it was never read"
	}
	return "; last read " + r.LastSuccess.UTC().Format(time.RFC3339)
}
