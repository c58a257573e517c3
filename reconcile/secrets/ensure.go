package secrets

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/schema"
)

// Kept is everything sealed that composition needs of a node, and the providers' nodes
// whose grants have changed.
type Kept struct {
	Secrets       []compose.Secret
	Credentials   []compose.Credential
	Grants        []compose.Grant
	ArtifactStore *schema.ArtifactStore
	Stale         []string
}

// Ensure makes what the node's modules declare and lack, remakes what no longer opens,
// withdraws the credentials of relations that ended, and reads the result.
func (s *Secrets) Ensure(ctx context.Context, tx pgx.Tx, mesh compose.Mesh, node string) (Kept, error) {
	to, err := lockRecipient(ctx, tx, node)
	if err != nil {
		return Kept{}, err
	}
	var kept Kept
	if kept.ArtifactStore, err = s.hostToken(ctx, tx, to); err != nil {
		return kept, err
	}
	stale := map[string]bool{}
	wanted := map[string]bool{}
	for _, placed := range compose.Resolve(mesh, node).Modules {
		module := placed.Assignment.Module
		document := mesh.Manifests[module].Document
		for _, name := range slices.Sorted(maps.Keys(document.OwnSecrets)) {
			if document.OwnSecrets[name].Given {
				continue
			}
			if err := s.own(ctx, tx, to, module, name); err != nil {
				return kept, err
			}
		}
		for _, provision := range slices.Sorted(maps.Keys(document.Secrets)) {
			binding, bound := placed.Bindings[provision]
			if !bound || !binding.BuiltIn() && binding.Grants == "" {
				continue
			}
			wanted[module+" "+provision] = true
			changed, err := s.credential(ctx, tx, to, module, binding)
			if err != nil {
				return kept, err
			}
			for _, provider := range changed {
				stale[provider] = true
			}
		}
	}
	if err := withdraw(ctx, tx, node, wanted, stale); err != nil {
		return kept, err
	}
	delete(stale, node)
	kept.Stale = slices.Sorted(maps.Keys(stale))
	return kept, load(ctx, tx, node, &kept)
}

// withdraw removes the credentials of relations that ended.
func withdraw(ctx context.Context, tx pgx.Tx, node string, wanted, stale map[string]bool) error {
	rows, err := tx.Query(ctx, `
DELETE FROM mesh.credentials WHERE node = $1 AND NOT (consumer || ' ' || provision = ANY($2))
RETURNING provider_node`, node, slices.Sorted(maps.Keys(wanted)))
	if err != nil {
		return fmt.Errorf("withdraw credentials of %s: %w", node, err)
	}
	providers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("withdraw credentials of %s: %w", node, err)
	}
	for _, provider := range providers {
		if provider != "" {
			stale[provider] = true
		}
	}
	return nil
}

func load(ctx context.Context, tx pgx.Tx, node string, kept *Kept) error {
	rows, err := tx.Query(ctx, `
SELECT module, name, origin = 'given', recipient, info, sealed FROM mesh.secrets
WHERE node = $1 AND module <> $2 ORDER BY module, name`, node, compose.FoundationModule)
	if err != nil {
		return fmt.Errorf("read secrets of %s: %w", node, err)
	}
	kept.Secrets, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (compose.Secret, error) {
		var s compose.Secret
		err := row.Scan(&s.Module, &s.Name, &s.Given, &s.Sealed.Recipient, &s.Sealed.Info, &s.Sealed.Data)
		return s, err
	})
	if err != nil {
		return fmt.Errorf("read secrets of %s: %w", node, err)
	}
	rows, err = tx.Query(ctx, `
SELECT consumer, provision, provider, provider_node, landing FROM mesh.credentials
WHERE node = $1 ORDER BY consumer, provision`, node)
	if err != nil {
		return fmt.Errorf("read credentials of %s: %w", node, err)
	}
	kept.Credentials, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (compose.Credential, error) {
		var c compose.Credential
		err := row.Scan(&c.Consumer, &c.Provision, &c.Provider, &c.ProviderNode, &c.Sealed)
		return c, err
	})
	if err != nil {
		return fmt.Errorf("read credentials of %s: %w", node, err)
	}
	rows, err = tx.Query(ctx, `
SELECT provider, provision, consumer, node, request FROM mesh.credentials
WHERE provider_node = $1 AND request IS NOT NULL ORDER BY provider, consumer, node`, node)
	if err != nil {
		return fmt.Errorf("read grants of %s: %w", node, err)
	}
	kept.Grants, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (compose.Grant, error) {
		var g compose.Grant
		err := row.Scan(&g.Provider, &g.Provision, &g.Consumer, &g.ConsumerNode, &g.Sealed)
		return g, err
	})
	if err != nil {
		return fmt.Errorf("read grants of %s: %w", node, err)
	}
	return nil
}
