package delivery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// settle is how long a plan waits for nodes that are about to be composed anew.
const settle = 10 * time.Second

// plan says what a push would change. It waits for what was changed just before to be
// composed.
func (d *Delivery) plan(ctx context.Context, c *extension.Context, in api.PlanIn) (api.PlanOut, error) {
	out := api.PlanOut{Nodes: []api.NodePlan{}}
	if in.Behind == (len(in.Nodes) > 0) {
		return out, &api.Error{Code: api.CodeInvalidInput, Message: "say which nodes, or those that are behind", Remedy: "mesh plan, or mesh plan N"}
	}
	known, err := inventory.NodeNames(ctx, c.Store)
	if err != nil {
		return out, err
	}
	names := slices.Clone(in.Nodes)
	if in.Behind {
		names = known
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return out, &api.Error{Code: api.CodeNotFound, Message: "there is no node " + name, Remedy: "mesh node ls"}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if err := d.Await(ctx, c, names); err != nil {
		return out, err
	}
	all, err := readFacts(ctx, c.Store, names)
	if err != nil {
		return out, err
	}
	for _, f := range all {
		if in.Behind && len(f.behind()) == 0 && len(f.blocked) == 0 {
			continue
		}
		plan, err := planNode(ctx, c.Store, f.name)
		if err != nil {
			return out, err
		}
		if plan == nil || in.Behind && len(f.behind()) == 0 && len(plan.Blocked) == 0 {
			continue
		}
		out.Nodes = append(out.Nodes, *plan)
	}
	return out, nil
}

// Await returns when none of the nodes, nil for all, is about to be composed anew, or after a
// while: so that what a caller is told follows from what it did just before.
func (d *Delivery) Await(ctx context.Context, c *extension.Context, names []string) error {
	deadline := time.Now().Add(settle)
	for {
		busy, err := refreshing(ctx, c.Store, names)
		if err != nil || !busy || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func planNode(ctx context.Context, q inventory.Queryer, node string) (*api.NodePlan, error) {
	now, err := readComposed(ctx, q, node, false)
	if err != nil || now == nil {
		return nil, err
	}
	previous, err := LastPushed(ctx, q, node)
	if err != nil {
		return nil, err
	}
	changes := compose.Diff(previous, &now.declaration)
	if changes == nil {
		changes = []api.Change{}
	}
	return &api.NodePlan{Node: node, Hash: now.declaration.Hash, Changes: changes, Blocked: now.blocked}, nil
}

// push sends each node the plan that was shown, if it still holds. One node's conflict
// leaves the others to go out.
func (d *Delivery) push(ctx context.Context, c *extension.Context, tx pgx.Tx, caller string, in api.PushIn) (api.PushOut, error) {
	out := api.PushOut{Nodes: []api.NodePush{}}
	if len(in.Plans) == 0 {
		return out, &api.Error{Code: api.CodeInvalidInput, Message: "no plan was given", Remedy: "mesh push --behind, or mesh push N"}
	}
	for _, node := range slices.Sorted(maps.Keys(in.Plans)) {
		pushed, err := d.pushNode(ctx, c, tx, caller, node, in.Plans[node])
		if err != nil {
			return out, err
		}
		out.Nodes = append(out.Nodes, pushed)
	}
	return out, nil
}

func (d *Delivery) pushNode(ctx context.Context, c *extension.Context, tx pgx.Tx, caller, node, hash string) (api.NodePush, error) {
	now, err := readComposed(ctx, tx, node, true)
	if err != nil {
		return api.NodePush{}, err
	}
	if now == nil {
		return api.NodePush{Node: node, State: "conflict", Message: "there is no plan for this node"}, nil
	}
	result := api.NodePush{Node: node, Generation: now.pushed, State: StatePushed, Blocked: now.blocked}
	if now.declaration.Hash != hash {
		result.State, result.Message = "conflict", "what the node should be changed after the plan was shown"
		return result, nil
	}
	retry, err := failedToApply(ctx, tx, node, now.pushed)
	if err != nil {
		return result, err
	}
	if now.pushed == 0 || now.pushedHash != hash || retry {
		signed, err := d.sign(now.declaration, now.pushed+1)
		if err != nil {
			return result, err
		}
		if err := Record(ctx, tx, signed, caller); err != nil {
			return result, err
		}
		result.Generation = signed.Generation
		err = c.Events.Publish(ctx, tx, extension.Event{Type: "node.pushed", Subject: node, Data: map[string]any{
			"generation": signed.Generation, "hash": signed.Hash, "by": caller,
		}})
		if err != nil {
			return result, err
		}
	}
	return result, c.Work.Enqueue(ctx, tx, workDeliver, node, time.Time{})
}

// failedToApply says whether the node tried the generation and did not settle on it, so that
// pushing it again means trying again.
func failedToApply(ctx context.Context, q inventory.Queryer, node string, generation int64) (bool, error) {
	var failed bool
	err := q.QueryRow(ctx, `
SELECT EXISTS (SELECT FROM mesh.reports WHERE node = $1 AND seen = $2 AND outcome IN ('failed', 'rolled-back'))
OR EXISTS (SELECT FROM mesh.reports WHERE node = $1 AND (body->>'refused')::bigint = $2)`,
		node, generation).Scan(&failed)
	if err != nil {
		return false, fmt.Errorf("read report of %s: %w", node, err)
	}
	return failed, nil
}

func (d *Delivery) sign(declaration schema.Declaration, generation int64) (schema.Declaration, error) {
	return Sign(d.config.Key, d.config.Epoch, declaration, generation)
}

// Sign makes a composed declaration one that a host obeys.
func Sign(key []byte, epoch int64, declaration schema.Declaration, generation int64) (schema.Declaration, error) {
	declaration.Epoch, declaration.Generation = epoch, generation
	if err := pki.SignDeclaration(key, &declaration); err != nil {
		return declaration, fmt.Errorf("sign declaration of %s: %w", declaration.Node, err)
	}
	return declaration, nil
}

// Record stores a signed declaration as the one the node was last told.
func Record(ctx context.Context, tx pgx.Tx, signed schema.Declaration, by string) error {
	body, err := schema.Canonical(signed)
	if err != nil {
		return fmt.Errorf("record declaration of %s: %w", signed.Node, err)
	}
	_, err = tx.Exec(ctx, `
INSERT INTO mesh.declarations (node, epoch, generation, hash, body, pushed_by) VALUES ($1, $2, $3, $4, $5, $6)`,
		signed.Node, signed.Epoch, signed.Generation, signed.Hash, body, by)
	if err != nil {
		return fmt.Errorf("record declaration of %s: %w", signed.Node, err)
	}
	_, err = tx.Exec(ctx, `
UPDATE mesh.node_state SET pushed = $2, pushed_hash = $3, pushed_at = clock_timestamp(), pushed_by = $4 WHERE node = $1`,
		signed.Node, signed.Generation, signed.Hash, by)
	if err != nil {
		return fmt.Errorf("record declaration of %s: %w", signed.Node, err)
	}
	return nil
}
