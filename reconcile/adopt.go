package reconcile

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/delivery"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// AdoptInput is what genesis hands over.
type AdoptInput struct {
	Config       Config               `json:"-"`
	Node         api.NodeAddIn        `json:"node"` // public keys
	Platform     string               `json:"platform"`
	Schema       int                  `json:"schema"` // newest its host knows
	Capabilities []string             `json:"capabilities"`
	Operator     string               `json:"operator"` // name
	Token        string               `json:"token"`    // the operator's; only its hash is stored
	Foundation   []schema.Resource    `json:"foundation,omitempty"`
	Results      []schema.Result      `json:"results"`              // of the init builder, with their manifests
	SigningKey   ed25519.PublicKey    `json:"signingKey,omitempty"` // of the init builder's provenance
	Assignments  []api.Assignment     `json:"assignments"`
	Given        []GivenSecret        `json:"given,omitempty"`
	Repository   *api.RepositoryAddIn `json:"repository,omitempty"`
}

// GivenSecret is a module's own secret whose value comes from outside.
type GivenSecret struct {
	Module string `json:"module"`
	Name   string `json:"name"`
	Value  []byte `json:"value"`
}

// AdoptOutput is the first declaration, generation 1, signed, and what could not be in it.
type AdoptOutput struct {
	Declaration schema.Declaration `json:"declaration"`
	Blocked     []api.Blocked      `json:"blocked,omitempty"`
}

// adoptedBy stands where a person's name would.
const adoptedBy = "genesis"

// Adopt makes the controller's schema and records the mesh's beginning in one transaction:
// the first node, the operator, what the init builder built, and what is assigned. It
// composes the node, and gives the declaration that is recorded as pushed. Done again with
// the same input it changes nothing and gives the declaration again.
//
// The pool is the controller's role. The repository is asked of the catalogue in the same
// transaction, so the catalogue's schema has to be there if one is given.
func Adopt(ctx context.Context, pool *store.Pool, in AdoptInput) (AdoptOutput, error) {
	var out AdoptOutput
	host, err := offline(in.Config, pool)
	if err != nil {
		return out, err
	}
	if err := host.Initialize(ctx); err != nil {
		return out, err
	}
	c := host.Context()
	err = c.Transact(ctx, func(tx pgx.Tx) error {
		// One adoption at a time; a second finds the first one's declaration.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('mesh.adopt'))`); err != nil {
			return err
		}
		if err := record(ctx, tx, in); err != nil {
			return err
		}
		var err error
		out, err = first(ctx, tx, in)
		return err
	})
	if err != nil {
		return out, fmt.Errorf("adopt node %s: %w", in.Node.Name, err)
	}
	return out, host.Stop(ctx)
}

// offline is a host of the extensions' tables, without workers and without a broker.
func offline(config Config, pool *store.Pool) (*extension.Host, error) {
	return extension.New(extension.Config{
		Store: pool, Mesh: config.Mesh, Manual: true,
		Extensions: []extension.Extension{
			{Name: "inventory", Migrations: inventory.Migrations()},
			{Name: "secrets", Migrations: config.keeper().Extension().Migrations},
			{Name: "builds", Migrations: builds.Migrations()},
			{Name: "delivery", Migrations: delivery.Migrations()},
		},
	})
}

func record(ctx context.Context, tx pgx.Tx, in AdoptInput) error {
	if err := inventory.PutNode(ctx, tx, in.Node); err != nil {
		return err
	}
	capabilities := slices.Sorted(slices.Values(in.Capabilities))
	if capabilities == nil {
		capabilities = []string{}
	}
	_, err := tx.Exec(ctx, `UPDATE mesh.nodes SET platform = $2, schema = $3, capabilities = $4 WHERE name = $1`,
		in.Node.Name, in.Platform, in.Schema, capabilities)
	if err != nil {
		return fmt.Errorf("record node: %w", err)
	}
	if in.Operator != "" {
		if err := extension.PutOperator(ctx, tx, in.Operator, in.Token); err != nil {
			return err
		}
	}
	if err := inventory.PutFoundation(ctx, tx, in.Node.Name, in.Foundation); err != nil {
		return err
	}
	for _, result := range in.Results {
		if err := builds.Adopt(ctx, tx, adoptedBy, result); err != nil {
			return err
		}
	}
	if in.SigningKey != nil {
		if err := builds.AdoptSigningKey(ctx, tx, adoptedBy, in.SigningKey); err != nil {
			return err
		}
	}
	for _, a := range in.Assignments {
		a.Origin = inventory.OriginGenesis
		if a.Node == "" {
			a.Node = in.Node.Name
		}
		if err := inventory.PutAssignment(ctx, tx, a); err != nil {
			return err
		}
	}
	return watch(ctx, tx, in.Repository)
}

// watch asks the catalogue to watch the source the mesh was built from.
func watch(ctx context.Context, tx pgx.Tx, repository *api.RepositoryAddIn) error {
	if repository == nil {
		return nil
	}
	_, err := tx.Exec(ctx, `SELECT `+catalogue.Schema+`.request_add_repository($1, $2, $3)`, repository.URL, repository.Ref, repository.Watch)
	if err != nil {
		return fmt.Errorf("watch %s: %w", repository.URL, err)
	}
	return nil
}

// first composes the node and records generation 1, unless something was pushed already.
func first(ctx context.Context, tx pgx.Tx, in AdoptInput) (AdoptOutput, error) {
	var out AdoptOutput
	keeper, node := in.Config.keeper(), in.Node.Name
	pushed, err := delivery.LastPushed(ctx, tx, node)
	if err != nil {
		return out, err
	}
	if pushed == nil {
		for _, secret := range in.Given {
			if err := keeper.Give(ctx, tx, node, secret.Module, secret.Name, secret.Value); err != nil {
				return out, err
			}
		}
	}
	if _, err := delivery.Compose(ctx, tx, keeper, in.Config.builtIn(), extension.Section{}, node); err != nil {
		return out, err
	}
	declaration, blocked, err := delivery.Composed(ctx, tx, node)
	if err != nil {
		return out, err
	}
	out.Blocked = blocked
	if pushed != nil {
		out.Declaration = *pushed
		return out, nil
	}
	if out.Declaration, err = delivery.Sign(in.Config.DeclarationKey, Epoch, declaration, 1); err != nil {
		return out, err
	}
	return out, delivery.Record(ctx, tx, out.Declaration, adoptedBy)
}
