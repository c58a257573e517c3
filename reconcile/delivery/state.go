package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// States of a node.
const (
	StateApplied    = "applied"
	StateBehind     = "behind"
	StatePushed     = "pushed"
	StateFailed     = "failed"
	StateRefused    = "refused"
	StateRolledBack = "rolled-back"
	StateSilent     = "silent"
	StateNeverHeard = "never-heard"
)

// Codes of the reasons a node is behind.
const (
	NeverPushed        = "NeverPushed"
	DeclarationChanged = "DeclarationChanged"
	NotApplied         = "NotApplied"
	Silent             = "Silent"
	NeverHeard         = "NeverHeard"
)

// SilentAfter is how old a node's last report may be before the node counts as silent.
const SilentAfter = 90 * time.Second

// facts are everything recorded of one node's delivery.
type facts struct {
	name, address string
	labels        map[string]string
	capabilities  []string
	hash          string            // composed; "" is never
	composed      map[string]string // modules
	blocked       []api.Blocked
	pushed        int64
	pushedHash    string
	pushedBy      string
	pushedAt      time.Time
	composedAt    time.Time
	appliedAt     time.Time
	told          map[string]string // modules as last pushed
	running       map[string]string // modules of the generation last applied
	heard         bool
	report        schema.Report
	received      time.Time
}

// behind says why a node is behind: its declaration is not the one last pushed, or the one
// last pushed is not the one applied.
func (f facts) behind() []api.Reason {
	var reasons []api.Reason
	switch {
	case f.hash == "":
	case f.pushed == 0:
		reasons = append(reasons, api.Reason{Code: NeverPushed, Message: "nothing was ever pushed to it"})
	case f.hash != f.pushedHash:
		reasons = append(reasons, api.Reason{Code: DeclarationChanged, Message: f.changed()})
	}
	if f.pushed > 0 && (!f.heard || f.report.Applied != f.pushed) {
		message := "generation " + strconv.FormatInt(f.pushed, 10) + " was pushed"
		if f.pushedBy != "" {
			message += " by " + f.pushedBy
		}
		if !f.pushedAt.IsZero() {
			message += " at " + f.pushedAt.UTC().Format(time.RFC3339)
		}
		reasons = append(reasons, api.Reason{Code: NotApplied, Message: message + " and is not applied"})
	}
	return reasons
}

// changed says which modules differ from what was pushed, and how.
func (f facts) changed() string {
	var parts []string
	for _, module := range union(f.told, f.composed) {
		before, after := f.told[module], f.composed[module]
		switch {
		case before == after:
		case before == "":
			parts = append(parts, module+" was assigned")
		case after == "":
			parts = append(parts, module+" was unassigned")
		default:
			parts = append(parts, module+" "+short(before)+" -> "+short(after))
		}
	}
	if len(parts) == 0 {
		return "its settings, secrets or sections changed since the last push"
	}
	return strings.Join(parts, ", ")
}

func union(a, b map[string]string) []string {
	var names []string
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func short(digest string) string {
	if algorithm, hex, ok := strings.Cut(digest, ":"); ok && len(hex) > 12 {
		return algorithm + ":" + hex[:12]
	}
	return digest
}

// state is the one word for a node. Silence outweighs what was last said, a failed apply
// outweighs being behind, and sent is not applied.
func (f facts) state(now time.Time) string {
	switch {
	case !f.heard:
		return StateNeverHeard
	case now.Sub(f.received) > SilentAfter:
		return StateSilent
	case f.pushed > 0 && f.report.Refused == f.pushed:
		return StateRefused
	case f.pushed > 0 && f.report.Seen == f.pushed && isFailure(f.report.Outcome):
		return f.report.Outcome
	case f.hash != "" && f.hash != f.pushedHash:
		return StateBehind
	case f.report.Applied != f.pushed:
		return StatePushed
	}
	return StateApplied
}

func isFailure(outcome string) bool {
	return outcome == StateFailed || outcome == StateRefused || outcome == StateRolledBack
}

// node is the node as an operator sees it.
func (f facts) node(now time.Time) api.Node {
	node := api.Node{
		Name: f.name, Address: f.address, State: f.state(now), Reasons: f.behind(), Labels: f.labels,
		Capabilities: f.capabilities, DeclaredAt: f.composedAt, Pushed: f.pushed, PushedAt: f.pushedAt, AppliedAt: f.appliedAt,
	}
	switch node.State {
	case StateNeverHeard:
		node.Reasons = append(node.Reasons, api.Reason{Code: NeverHeard, Message: "its host has never reported"})
	case StateSilent:
		node.Reasons = append(node.Reasons, api.Reason{Code: Silent, Message: "last heard " + f.received.UTC().Format(time.RFC3339)})
	}
	if f.heard {
		node.Applied, node.LastReport, node.Outcome, node.Cause = f.report.Applied, f.received, f.report.Outcome, f.report.Cause
	}
	node.Modules = f.modules()
	return node
}

// modules says per module what runs, by the generation the node says it has applied, and
// what would.
func (f facts) modules() []api.NodeModule {
	blocked := map[string]string{}
	for _, b := range f.blocked {
		if blocked[b.Module] == "" {
			blocked[b.Module] = b.Reason + ": " + b.Message
		}
	}
	names := union(f.running, f.composed)
	for name := range blocked {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []api.NodeModule
	for _, name := range names {
		module := api.NodeModule{Module: name, Running: f.running[name], Declared: f.composed[name], Blocked: blocked[name]}
		switch {
		case f.failing(name):
			module.State = "failing"
		case module.Blocked != "":
			module.State = "blocked"
		case module.Running == "":
			module.State = "pending"
		case module.Running != module.Declared:
			module.State = "behind"
		default:
			module.State = "running"
		}
		out = append(out, module)
	}
	return out
}

func (f facts) failing(module string) bool {
	for _, resource := range f.report.Resources {
		owner, _, _ := strings.Cut(resource.ID, "/")
		if owner == module && (resource.Phase == "failing" || resource.Phase == "failed") {
			return true
		}
	}
	return false
}

// orZero is a time that the database may not have.
func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// readFacts reads the delivery of the nodes named, or of all, by name.
func readFacts(ctx context.Context, q inventory.Queryer, names []string) ([]facts, error) {
	rows, err := q.Query(ctx, `
SELECT n.name, n.address, n.labels, n.capabilities, coalesce(s.hash, ''), coalesce(s.document->'modules', '{}'),
  coalesce(s.blocked, '[]'), coalesce(s.pushed, 0), coalesce(s.pushed_hash, ''), coalesce(s.pushed_by, ''), s.pushed_at,
  coalesce((SELECT d.body->'modules' FROM mesh.declarations d WHERE d.node = n.name ORDER BY d.epoch DESC, d.generation DESC LIMIT 1), '{}'),
  coalesce((SELECT d.body->'modules' FROM mesh.declarations d WHERE d.node = n.name AND d.epoch = r.epoch AND d.generation = r.applied), '{}'),
  r.body, r.received_at, s.composed_at, r.applied_at
FROM mesh.nodes n LEFT JOIN mesh.node_state s ON s.node = n.name LEFT JOIN mesh.reports r ON r.node = n.name
WHERE $1::text[] IS NULL OR n.name = ANY($1) ORDER BY n.name`, names)
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (facts, error) {
		var f facts
		var pushedAt, received, composedAt, appliedAt *time.Time
		var report []byte
		err := row.Scan(&f.name, &f.address, &f.labels, &f.capabilities, &f.hash, &f.composed, &f.blocked, &f.pushed,
			&f.pushedHash, &f.pushedBy, &pushedAt, &f.told, &f.running, &report, &received, &composedAt, &appliedAt)
		if err != nil {
			return f, err
		}
		f.pushedAt, f.composedAt, f.appliedAt = orZero(pushedAt), orZero(composedAt), orZero(appliedAt)
		if received != nil {
			f.heard, f.received = true, *received
			err = json.Unmarshal(report, &f.report)
		}
		return f, err
	})
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	return out, nil
}

// Nodes lists the nodes named, or all, as an operator sees them.
func (d *Delivery) Nodes(ctx context.Context, q inventory.Queryer, names []string, now time.Time) ([]api.Node, error) {
	all, err := readFacts(ctx, q, names)
	if err != nil {
		return nil, err
	}
	out := make([]api.Node, 0, len(all))
	for _, f := range all {
		out = append(out, f.node(now))
	}
	return out, nil
}

// Behind lists the nodes that are behind, with why.
func (d *Delivery) Behind(ctx context.Context, q inventory.Queryer) ([]api.NodeBehind, error) {
	all, err := readFacts(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	out := []api.NodeBehind{}
	for _, f := range all {
		if reasons := f.behind(); len(reasons) > 0 {
			out = append(out, api.NodeBehind{Node: f.name, Reasons: reasons})
		}
	}
	return out, nil
}
