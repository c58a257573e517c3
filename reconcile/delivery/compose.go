package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/reconcile/secrets"
	"github.com/mesh-control/mesh/schema"
)

// composeNode is the reconciler node.compose.
func (d *Delivery) composeNode(ctx context.Context, run *extension.Run, node string) (string, error) {
	labels := map[string]string{}
	err := run.Store.QueryRow(ctx, `SELECT labels FROM mesh.nodes WHERE name = $1`, node).Scan(&labels)
	if errors.Is(err, pgx.ErrNoRows) {
		return extension.Done, nil // forgotten meanwhile
	}
	if err != nil {
		return "", fmt.Errorf("compose %s: %w", node, err)
	}
	others, err := run.Sections(ctx, extension.Node{Name: node, Labels: labels})
	if err != nil {
		return "", err
	}
	return extension.Done, run.Tx(ctx, func(tx pgx.Tx) error {
		stale, err := Compose(ctx, tx, d.config.Secrets, d.config.BuiltIn, others, node)
		if err != nil {
			if errors.Is(err, secrets.ErrNoNode) {
				return nil
			}
			return err
		}
		return run.Work.EnqueueMany(ctx, tx, extension.ComposeKind, stale)
	})
}

// Compose composes a node and stores what came out. It answers the nodes that have to be
// composed again because of it: the providers whose grants changed.
func Compose(ctx context.Context, tx pgx.Tx, keeper *secrets.Secrets, builtIn []compose.BuiltIn, others extension.Section, node string) ([]string, error) {
	if _, err := inventory.BringAlong(ctx, tx, node, builtIn); err != nil {
		return nil, err
	}
	mesh, err := inventory.Mesh(ctx, tx, builtIn)
	if err != nil {
		return nil, err
	}
	kept, err := keeper.Ensure(ctx, tx, mesh, node)
	if err != nil {
		return nil, err
	}
	foundation, err := inventory.Foundation(ctx, tx, node)
	if err != nil {
		return nil, err
	}
	previous, err := LastPushed(ctx, tx, node)
	if err != nil {
		return nil, err
	}
	out, err := compose.Compose(compose.Input{
		Mesh: mesh, Node: node, Secrets: kept.Secrets, Credentials: kept.Credentials, Grants: kept.Grants,
		Foundation: foundation, ArtifactStore: kept.ArtifactStore, Previous: previous,
	})
	if err != nil {
		return nil, err
	}
	declaration, err := merge(out.Declaration, others)
	if err != nil {
		return nil, err
	}
	return kept.Stale, keep(ctx, tx, declaration, out.Blocked)
}

// merge adds the other extensions' sections to the composed one.
func merge(declaration schema.Declaration, others extension.Section) (schema.Declaration, error) {
	merged := extension.Merge(extension.Section{
		Modules: declaration.Modules, Resources: declaration.Resources, Host: declaration.Host,
		Devices: declaration.Devices, Instances: declaration.Instances, Site: declaration.Site, Daemon: declaration.Daemon,
	}, others)
	declaration.Modules, declaration.Resources, declaration.Host = merged.Modules, merged.Resources, merged.Host
	declaration.Devices, declaration.Instances = merged.Devices, merged.Instances
	declaration.Site, declaration.Daemon = merged.Site, merged.Daemon
	var err error
	declaration.Hash, err = schema.HashDeclaration(declaration)
	return declaration, err
}

func keep(ctx context.Context, tx pgx.Tx, declaration schema.Declaration, blocked []api.Blocked) error {
	document, err := schema.Canonical(declaration)
	if err != nil {
		return fmt.Errorf("store declaration of %s: %w", declaration.Node, err)
	}
	if blocked == nil {
		blocked = []api.Blocked{}
	}
	_, err = tx.Exec(ctx, `
INSERT INTO mesh.node_state AS s (node, hash, document, blocked) VALUES ($1, $2, $3, $4)
ON CONFLICT (node) DO UPDATE SET hash = excluded.hash, document = excluded.document,
  blocked = excluded.blocked, composed_at = excluded.composed_at
WHERE s.hash <> excluded.hash OR s.blocked <> excluded.blocked`, declaration.Node, declaration.Hash, document, blocked)
	if err != nil {
		return fmt.Errorf("store declaration of %s: %w", declaration.Node, err)
	}
	return nil
}

// LastPushed is the declaration a node was last told, nil if never.
func LastPushed(ctx context.Context, q inventory.Queryer, node string) (*schema.Declaration, error) {
	var body []byte
	err := q.QueryRow(ctx, `SELECT body FROM mesh.declarations WHERE node = $1 ORDER BY epoch DESC, generation DESC LIMIT 1`, node).Scan(&body)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read declaration of %s: %w", node, err)
	}
	var declaration schema.Declaration
	if err := json.Unmarshal(body, &declaration); err != nil {
		return nil, fmt.Errorf("read declaration of %s: %w", node, err)
	}
	return &declaration, nil
}

// composed is a row of mesh.node_state.
type composed struct {
	node        string
	declaration schema.Declaration
	blocked     []api.Blocked
	pushed      int64
	pushedHash  string
}

func readComposed(ctx context.Context, q inventory.Queryer, node string, lock bool) (*composed, error) {
	sql := `SELECT document, blocked, pushed, pushed_hash FROM mesh.node_state WHERE node = $1`
	if lock {
		sql += ` FOR UPDATE`
	}
	c := composed{node: node}
	var document []byte
	err := q.QueryRow(ctx, sql, node).Scan(&document, &c.blocked, &c.pushed, &c.pushedHash)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(document, &c.declaration)
	}
	if err != nil {
		return nil, fmt.Errorf("read state of %s: %w", node, err)
	}
	return &c, nil
}

// refreshing says whether a node is about to be composed anew.
func refreshing(ctx context.Context, q inventory.Queryer, nodes []string) (bool, error) {
	var busy bool
	err := q.QueryRow(ctx, `
SELECT EXISTS (SELECT FROM mesh.work WHERE kind = $1 AND ($2::text[] IS NULL OR key = ANY($2)) AND attempts = 0 AND due <= mesh.mesh_now())`,
		extension.ComposeKind, nodes).Scan(&busy)
	return busy, err
}

// Composed is a node's declaration as it was last composed, with what is not in it.
func Composed(ctx context.Context, q inventory.Queryer, node string) (schema.Declaration, []api.Blocked, error) {
	c, err := readComposed(ctx, q, node, false)
	if err != nil {
		return schema.Declaration{}, nil, err
	}
	if c == nil {
		return schema.Declaration{}, nil, fmt.Errorf("read state of %s: it was never composed", node)
	}
	return c.declaration, c.blocked, nil
}
