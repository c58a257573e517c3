package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/schema"
)

// Origins of an assignment.
const (
	OriginHand    = "hand"
	OriginPlacer  = "placer"
	OriginGenesis = "genesis"
	OriginBrought = "brought"
)

// NodeRow is a node as it is recorded.
type NodeRow struct {
	Name, Address, Fingerprint, Platform string
	Identity, SealingKey                 []byte
	Labels                               map[string]string
	Schema                               int
	Capabilities                         []string
}

// Queryer reads: a pool or a transaction.
type Queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const nodeColumns = `name, address, identity, sealing_key, fingerprint, labels, platform, schema, capabilities`

func scanNode(row pgx.CollectableRow) (NodeRow, error) {
	var n NodeRow
	err := row.Scan(&n.Name, &n.Address, &n.Identity, &n.SealingKey, &n.Fingerprint, &n.Labels, &n.Platform, &n.Schema, &n.Capabilities)
	return n, err
}

// Nodes reads every node, by name.
func Nodes(ctx context.Context, q Queryer) ([]NodeRow, error) {
	rows, err := q.Query(ctx, `SELECT `+nodeColumns+` FROM mesh.nodes ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	nodes, err := pgx.CollectRows(rows, scanNode)
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	return nodes, nil
}

// Compose is the node as composition knows it.
func (n NodeRow) Compose() compose.Node {
	return compose.Node{
		Name: n.Name, Address: n.Address, Platform: n.Platform, Schema: n.Schema,
		Capabilities: n.Capabilities, Fingerprint: n.Fingerprint,
	}
}

// NodeNames lists every node.
func NodeNames(ctx context.Context, q Queryer) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT name FROM mesh.nodes ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Assignments reads every assignment, by node and module.
func Assignments(ctx context.Context, q Queryer) ([]api.Assignment, error) {
	rows, err := q.Query(ctx, `SELECT module, node, settings, bindings, origin FROM mesh.assignments ORDER BY node, module`)
	if err != nil {
		return nil, fmt.Errorf("read assignments: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (api.Assignment, error) {
		var a api.Assignment
		err := row.Scan(&a.Module, &a.Node, &a.Settings, &a.Bindings, &a.Origin)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("read assignments: %w", err)
	}
	return out, nil
}

// ManifestRow is the manifest the mesh holds of a module, with the build that made it.
type ManifestRow struct {
	Digest   string
	Document schema.Manifest
	Build    string
	Recorded time.Time
}

// Manifests reads what the mesh holds, by module.
func Manifests(ctx context.Context, q Queryer) (map[string]ManifestRow, error) {
	rows, err := q.Query(ctx, `SELECT module, digest, document, build, recorded_at FROM mesh.manifests`)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	out := map[string]ManifestRow{}
	var module string
	var row ManifestRow
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&module, &row.Digest, &document, &row.Build, &row.Recorded}, func() error {
		row.Document = schema.Manifest{}
		if err := json.Unmarshal(document, &row.Document); err != nil {
			return fmt.Errorf("manifest of %s: %w", module, err)
		}
		out[module] = row
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	return out, nil
}

// RecordManifest makes a manifest the one the mesh holds of its module.
func RecordManifest(ctx context.Context, tx pgx.Tx, digest string, manifest schema.Manifest, build string) error {
	document, err := schema.Canonical(manifest)
	if err != nil {
		return fmt.Errorf("record manifest of %s: %w", manifest.Module, err)
	}
	_, err = tx.Exec(ctx, `
INSERT INTO mesh.manifests (module, digest, document, build) VALUES ($1, $2, $3, $4)
ON CONFLICT (module) DO UPDATE SET digest = excluded.digest, document = excluded.document,
  build = excluded.build, recorded_at = excluded.recorded_at`, manifest.Module, digest, document, build)
	if err != nil {
		return fmt.Errorf("record manifest of %s: %w", manifest.Module, err)
	}
	return nil
}

// Mesh reads what bindings are decided from.
func Mesh(ctx context.Context, q Queryer, builtIn []compose.BuiltIn) (compose.Mesh, error) {
	mesh := compose.Mesh{Manifests: map[string]compose.Manifest{}, BuiltIn: builtIn}
	nodes, err := Nodes(ctx, q)
	if err != nil {
		return mesh, err
	}
	for _, node := range nodes {
		mesh.Nodes = append(mesh.Nodes, node.Compose())
	}
	assignments, err := Assignments(ctx, q)
	if err != nil {
		return mesh, err
	}
	for _, a := range assignments {
		mesh.Assignments = append(mesh.Assignments, compose.Assignment{
			Module: a.Module, Node: a.Node, Settings: a.Settings, Bindings: a.Bindings,
		})
	}
	manifests, err := Manifests(ctx, q)
	for module, row := range manifests {
		mesh.Manifests[module] = compose.Manifest{Digest: row.Digest, Document: row.Document}
	}
	return mesh, err
}

// Foundation reads a node's foundation resources.
func Foundation(ctx context.Context, q Queryer, node string) ([]schema.Resource, error) {
	rows, err := q.Query(ctx, `SELECT document FROM mesh.foundation_resources WHERE node = $1 ORDER BY id`, node)
	if err != nil {
		return nil, fmt.Errorf("read foundation of %s: %w", node, err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (schema.Resource, error) {
		var resource schema.Resource
		err := row.Scan(&resource)
		return resource, err
	})
	if err != nil {
		return nil, fmt.Errorf("read foundation of %s: %w", node, err)
	}
	return out, nil
}

// PutFoundation records a node's foundation resources in place of those it had.
func PutFoundation(ctx context.Context, tx pgx.Tx, node string, resources []schema.Resource) error {
	if _, err := tx.Exec(ctx, `DELETE FROM mesh.foundation_resources WHERE node = $1`, node); err != nil {
		return fmt.Errorf("record foundation of %s: %w", node, err)
	}
	for _, resource := range resources {
		_, err := tx.Exec(ctx, `INSERT INTO mesh.foundation_resources (node, id, document) VALUES ($1, $2, $3)`,
			node, resource.ID, resource)
		if err != nil {
			return fmt.Errorf("record foundation of %s: %w", node, err)
		}
	}
	return nil
}

// PutAssignment records an assignment. One made by hand takes the place of one brought.
func PutAssignment(ctx context.Context, tx pgx.Tx, a api.Assignment) error {
	if a.Settings == nil {
		a.Settings = map[string]string{}
	}
	if a.Bindings == nil {
		a.Bindings = map[string]string{}
	}
	_, err := tx.Exec(ctx, `
INSERT INTO mesh.assignments (module, node, settings, bindings, origin) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (node, module) DO UPDATE SET settings = excluded.settings, bindings = excluded.bindings,
  origin = excluded.origin WHERE excluded.origin <> 'brought'`, a.Module, a.Node, a.Settings, a.Bindings, a.Origin)
	if err != nil {
		return fmt.Errorf("assign %s to %s: %w", a.Module, a.Node, err)
	}
	return nil
}

// lockAssignments makes changes of assignments one after the other, so that closure and
// claims are decided on what the others have committed.
func lockAssignments(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('mesh.assignments'))`)
	return err
}

// BringAlong records what a node's assignments require and nothing provides yet, and says
// whether there was any.
func BringAlong(ctx context.Context, tx pgx.Tx, node string, builtIn []compose.BuiltIn) ([]compose.Assignment, error) {
	mesh, err := Mesh(ctx, tx, builtIn)
	if err != nil {
		return nil, err
	}
	if len(compose.Resolve(mesh, node).Brought()) == 0 {
		return nil, nil
	}
	if err := lockAssignments(ctx, tx); err != nil {
		return nil, err
	}
	if mesh, err = Mesh(ctx, tx, builtIn); err != nil {
		return nil, err
	}
	brought := compose.Resolve(mesh, node).Brought()
	for _, a := range brought {
		if err := PutAssignment(ctx, tx, api.Assignment{Module: a.Module, Node: a.Node, Origin: OriginBrought}); err != nil {
			return nil, err
		}
	}
	return brought, nil
}

// DropUnneeded removes what was brought along and no requirement is bound to any more.
func DropUnneeded(ctx context.Context, tx pgx.Tx, builtIn []compose.BuiltIn) error {
	for {
		mesh, err := Mesh(ctx, tx, builtIn)
		if err != nil {
			return err
		}
		needed := map[string]bool{}
		for _, node := range mesh.Nodes {
			for _, placed := range compose.Resolve(mesh, node.Name).Modules {
				for _, binding := range placed.Bindings {
					if binding.Module != placed.Assignment.Module {
						needed[binding.Module+"@"+binding.Node] = true
					}
				}
			}
		}
		rows, err := tx.Query(ctx, `DELETE FROM mesh.assignments WHERE origin = 'brought' AND NOT (module || '@' || node = ANY($1)) RETURNING module`,
			keys(needed))
		if err != nil {
			return fmt.Errorf("remove assignments nothing needs: %w", err)
		}
		removed, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(removed) == 0 {
			return err
		}
	}
}

func keys(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for key := range set {
		out = append(out, key)
	}
	return out
}
