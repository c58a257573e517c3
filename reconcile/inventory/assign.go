package inventory

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/extension"
)

// assign records an assignment after it has been checked against the node and what is there.
func (i *Inventory) assign(ctx context.Context, c *extension.Context, tx pgx.Tx, in api.AssignIn) (api.AssignOut, error) {
	var out api.AssignOut
	if !nameForm.MatchString(in.Module) {
		return out, invalid("module name %q must match %s", in.Module, nameForm)
	}
	if err := lockAssignments(ctx, tx); err != nil {
		return out, err
	}
	mesh, err := Mesh(ctx, tx, i.config.BuiltIn)
	if err != nil {
		return out, err
	}
	node, ok := nodeOf(mesh, in.Node)
	if !ok {
		return out, unknownNode(in.Node)
	}
	manifest, built := mesh.Manifests[in.Module]
	if !built {
		known, err := knownSource(ctx, tx, in.Module)
		if err != nil {
			return out, err
		}
		if !known {
			return out, &api.Error{Code: api.CodeNotFound, Message: "there is no module " + in.Module, Remedy: "mesh status, or mesh repo add URL"}
		}
		out.Notes = append(out.Notes, in.Module+" is not built yet: mesh build --behind")
	}
	assignment := api.Assignment{Module: in.Module, Node: in.Node, Settings: in.Settings, Bindings: in.Bindings, Origin: OriginHand}
	if built {
		if err := check(mesh, node, manifest, assignment); err != nil {
			return out, err
		}
	}
	if err := PutAssignment(ctx, tx, assignment); err != nil {
		return out, err
	}
	brought, err := BringAlong(ctx, tx, in.Node, i.config.BuiltIn)
	if err != nil {
		return out, err
	}
	for _, a := range brought {
		if err := check(mesh, node, mesh.Manifests[a.Module], api.Assignment{Module: a.Module, Node: a.Node}); err != nil {
			return out, err
		}
		out.Notes = append(out.Notes, fmt.Sprintf("brings %s along", a.Module))
	}
	if mesh, err = Mesh(ctx, tx, i.config.BuiltIn); err != nil {
		return out, err
	}
	for _, placed := range compose.Resolve(mesh, in.Node).Modules {
		if placed.Assignment.Module != in.Module {
			continue
		}
		for _, blocked := range placed.Blocked {
			out.Notes = append(out.Notes, strings.TrimSpace("waits: "+blocked.Message+"; "+blocked.Remedy))
		}
	}
	out.Assignment = assignment
	return out, InvalidateAll(ctx, c, tx)
}

func nodeOf(mesh compose.Mesh, name string) (compose.Node, bool) {
	for _, node := range mesh.Nodes {
		if node.Name == name {
			return node, true
		}
	}
	return compose.Node{}, false
}

// knownSource says whether the catalogue has read a module of this name.
func knownSource(ctx context.Context, tx pgx.Tx, module string) (bool, error) {
	var ready, known bool
	if err := tx.QueryRow(ctx, `SELECT to_regclass('catalogue.sources') IS NOT NULL`).Scan(&ready); err != nil || !ready {
		return false, err
	}
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM catalogue.sources WHERE module = $1 AND state <> 'removed')`, module).Scan(&known)
	return known, err
}

// check refuses an assignment that could not go out because of the node, of what is on it,
// or of the values given.
func check(mesh compose.Mesh, node compose.Node, manifest compose.Manifest, a api.Assignment) error {
	refuse := func(remedy, format string, args ...any) error {
		return &api.Error{Code: api.CodeConflict, Message: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	document := manifest.Document
	if missing := compose.MissingCapabilities(document, node); len(missing) > 0 {
		return refuse("mesh node show "+node.Name, "node %s does not report the capability %q that %s needs", node.Name, missing[0], a.Module)
	}
	for _, other := range mesh.Assignments {
		if other.Node != node.Name || other.Module == a.Module {
			continue
		}
		held := map[string]bool{}
		for _, claim := range mesh.Manifests[other.Module].Document.Claims {
			held[compose.ClaimLabel(claim)] = true
		}
		for _, claim := range document.Claims {
			if label := compose.ClaimLabel(claim); label != "" && held[label] {
				return refuse("mesh unassign "+other.Module+" --node "+node.Name, "%s is claimed by %s on node %s, and %s claims it too", label, other.Module, node.Name, a.Module)
			}
		}
	}
	if err := compose.CheckSettings(document.Settings, a.Settings); err != nil {
		return invalid("%s: %v", a.Module, err)
	}
	for provision, bound := range a.Bindings {
		if err := checkBinding(mesh, document.Module, provision, bound); err != nil {
			return err
		}
	}
	return nil
}

func checkBinding(mesh compose.Mesh, consumer, provision, bound string) error {
	required := false
	for _, requirement := range mesh.Manifests[consumer].Document.Requires {
		required = required || requirement.Name == provision
	}
	if !required {
		return invalid("%s does not require %s", consumer, provision)
	}
	module, node, ok := strings.Cut(bound, "@")
	if !ok {
		return invalid("bind %s=%s: expected module@node", provision, bound)
	}
	if _, known := nodeOf(mesh, node); !known {
		return unknownNode(node)
	}
	for _, provides := range mesh.Manifests[module].Document.Provides {
		if provides.Name == provision {
			return nil
		}
	}
	return invalid("bind %s=%s: %s does not provide %s", provision, bound, module, provision)
}

func (i *Inventory) unassign(ctx context.Context, c *extension.Context, tx pgx.Tx, in api.UnassignIn) error {
	if err := lockAssignments(ctx, tx); err != nil {
		return err
	}
	gone, err := tx.Exec(ctx, `DELETE FROM mesh.assignments WHERE module = $1 AND node = $2`, in.Module, in.Node)
	if err != nil {
		return fmt.Errorf("unassign %s from %s: %w", in.Module, in.Node, err)
	}
	if gone.RowsAffected() == 0 {
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("%s is not assigned to %s", in.Module, in.Node), Remedy: "mesh node show " + in.Node}
	}
	if err := DropUnneeded(ctx, tx, i.config.BuiltIn); err != nil {
		return err
	}
	return InvalidateAll(ctx, c, tx)
}
