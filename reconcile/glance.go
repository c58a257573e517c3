package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/delivery"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/registry"
)

// glance answers what takes more than one extension's facts.
type glance struct {
	mesh, version string
	builds        *builds.Builds
	delivery      *delivery.Delivery
	registry      func() (*registry.Client, error) // nil without a registry
}

// Extension is what the controller registers.
func (g *glance) Extension() extension.Extension {
	type mc = extension.MethodContext
	return extension.Extension{
		Name:     "glance",
		Requires: []string{"builds", "delivery"},
		Catalog:  extension.Catalog{Actions: []string{api.SystemStatus.Action, api.ModuleBehind.Action}},
		API: func(*extension.Context) []extension.Method {
			return []extension.Method{
				// It asks the broker too, so it holds no transaction meanwhile.
				extension.Handle(api.SystemStatus, extension.Options{LongPoll: true}, func(ctx context.Context, c *mc, _ api.None) (api.Status, error) {
					return g.status(ctx, c.Context)
				}),
				// These wait for what was changed just before to be composed.
				extension.Handle(api.ModuleBehind, extension.Options{LongPoll: true}, func(ctx context.Context, c *mc, _ api.None) (api.BehindOut, error) {
					return g.behind(ctx, c.Context)
				}),
				extension.Handle(api.ModuleWhy, extension.Options{LongPoll: true}, func(ctx context.Context, c *mc, in api.WhyIn) (api.WhyOut, error) {
					return g.why(ctx, c.Context, in)
				}),
				extension.Handle(api.ModuleTrace, extension.Options{LongPoll: true}, func(ctx context.Context, c *mc, in api.TraceIn) (api.TraceOut, error) {
					return g.trace(ctx, c.Context, in)
				}),
				extension.Handle(api.ModuleGraph, extension.Options{}, func(ctx context.Context, c *mc, in api.GraphIn) (api.GraphOut, error) {
					return g.graph(ctx, c.Tx, in)
				}),
			}
		},
	}
}

func (g *glance) status(ctx context.Context, c *extension.Context) (api.Status, error) {
	status := api.Status{Mesh: g.mesh, Version: g.version}
	var err error
	if status.Catalogue, err = builds.Catalogue(ctx, c.Store); err != nil {
		return status, err
	}
	if status.Repositories, err = builds.Repositories(ctx, c.Store); err != nil {
		return status, err
	}
	if status.Notices, err = builds.StrayNotices(ctx, c.Store); err != nil {
		return status, err
	}
	if status.Modules, err = g.builds.Statuses(ctx, c.Store); err != nil {
		return status, err
	}
	if status.Nodes, err = g.delivery.Nodes(ctx, c.Store, nil, c.Clock.Now()); err != nil {
		return status, err
	}
	if status.Builders, err = g.builds.Builders(ctx, c.Store); err != nil {
		return status, err
	}
	status.Queue, err = g.builds.Queue(ctx, c.Store)
	return status, err
}

func (g *glance) behind(ctx context.Context, c *extension.Context) (api.BehindOut, error) {
	out := api.BehindOut{Modules: []api.ModuleStatus{}}
	if err := g.delivery.Await(ctx, c, nil); err != nil {
		return out, err
	}
	var err error
	if out.Catalogue, err = builds.Catalogue(ctx, c.Store); err != nil {
		return out, err
	}
	repositories, err := builds.Repositories(ctx, c.Store)
	if err != nil {
		return out, err
	}
	for _, repository := range repositories {
		if repository.State != catalogue.StateOK {
			out.Unread = append(out.Unread, repository)
		}
	}
	modules, err := g.builds.Statuses(ctx, c.Store)
	if err != nil {
		return out, err
	}
	for _, module := range modules {
		if len(module.Reasons) > 0 {
			out.Modules = append(out.Modules, module)
		}
		if module.State == catalogue.StateInvalid || module.State == catalogue.StateConflict {
			out.Broken = append(out.Broken, module)
		}
	}
	out.Nodes, err = g.delivery.Behind(ctx, c.Store)
	return out, err
}

// why gives a module's facts in the order in which they come about, and the command that
// comes next.
func (g *glance) why(ctx context.Context, c *extension.Context, in api.WhyIn) (api.WhyOut, error) {
	var out api.WhyOut
	if err := g.delivery.Await(ctx, c, nil); err != nil {
		return out, err
	}
	modules, err := g.builds.Statuses(ctx, c.Store)
	if err != nil {
		return out, err
	}
	at := slices.IndexFunc(modules, func(m api.ModuleStatus) bool { return m.Module == in.Module })
	if at < 0 {
		return out, unknownModule(in.Module)
	}
	module := modules[at]
	if out.Facts, out.Next, err = g.source(ctx, c.Store, module); err != nil {
		return out, err
	}
	nodes := module.Nodes
	if in.Node != "" {
		nodes = []string{in.Node}
	}
	seen, err := g.delivery.Nodes(ctx, c.Store, nodes, c.Clock.Now())
	if err != nil {
		return out, err
	}
	if in.Node != "" && len(seen) == 0 {
		return out, &api.Error{Code: api.CodeNotFound, Message: "there is no node " + in.Node, Remedy: "mesh node ls"}
	}
	for _, node := range seen {
		facts, next := onNode(module, node)
		out.Facts = append(out.Facts, facts...)
		if out.Next == "" {
			out.Next = next
		}
	}
	if out.Next == "" && len(nodes) == 0 {
		out.Next = "mesh assign " + module.Module + " --node N"
	}
	return out, nil
}

// source gives the facts of a module before it is on any node.
func (g *glance) source(ctx context.Context, q inventory.Queryer, m api.ModuleStatus) ([]api.Fact, string, error) {
	var facts []api.Fact
	next := ""
	if m.Commit != "" {
		fact := api.Fact{Fact: "seen", Message: fmt.Sprintf("%s %s at commit %s", m.Repository, m.Path, m.Commit), At: m.Seen, OK: m.Error == ""}
		if m.Error != "" {
			fact.Message, next = m.Error, remedy(m)
		}
		facts = append(facts, fact)
	}
	listed, err := g.builds.Last(ctx, q, m.Module)
	if err != nil {
		return nil, "", err
	}
	if listed != nil {
		fact := api.Fact{Fact: "built", Message: "build " + listed.ID + " " + listed.State, At: listed.Ended, OK: listed.Error == nil && !listed.Ended.IsZero()}
		if listed.Error != nil {
			fact.Message += ": " + listed.Error.Message
		}
		facts = append(facts, fact)
	}
	if m.Digest != "" {
		facts = append(facts, api.Fact{Fact: "published", Message: "manifest " + m.Digest + " from commit " + m.BuiltFrom, At: m.Published, OK: len(m.Reasons) == 0})
	}
	for _, reason := range m.Reasons {
		facts = append(facts, api.Fact{Fact: "behind", Message: reason.Message})
	}
	if next == "" && len(m.Reasons) > 0 {
		next = "mesh build --behind"
		switch {
		case m.State == catalogue.StateFailed:
			next = "mesh build --behind --retry"
		case m.Suspended != "":
			next = "mesh module resume " + m.Module + ", or mesh repo resume " + m.Repository
		}
	}
	return facts, next, nil
}

// remedy is what to do about a source that cannot be built.
func remedy(m api.ModuleStatus) string {
	if m.State == catalogue.StateRemoved {
		return "mesh repo add " + m.Repository + ", or commit its folder again, or mesh unassign " + m.Module
	}
	return "correct its module.json and commit"
}

// onNode gives the facts of a module on one node.
func onNode(m api.ModuleStatus, node api.Node) ([]api.Fact, string) {
	at := slices.IndexFunc(node.Modules, func(n api.NodeModule) bool { return n.Module == m.Module })
	if at < 0 {
		return []api.Fact{{Fact: "declared", Message: "not on " + node.Name}}, "mesh assign " + m.Module + " --node " + node.Name
	}
	on := node.Modules[at]
	if on.Blocked != "" {
		return []api.Fact{{Fact: "declared", Message: node.Name + ": " + on.Blocked}}, "mesh plan " + node.Name
	}
	facts := []api.Fact{{Fact: "declared", Message: fmt.Sprintf("%s should run %s", node.Name, on.Declared), At: node.DeclaredAt, OK: true}}
	facts = append(facts, api.Fact{Fact: "pushed", Message: fmt.Sprintf("%s was told generation %d", node.Name, node.Pushed), At: node.PushedAt, OK: on.Running == on.Declared || node.State == delivery.StatePushed})
	applied := api.Fact{Fact: "applied", Message: fmt.Sprintf("%s runs %s (generation %d)", node.Name, on.Running, node.Applied), At: node.AppliedAt, OK: on.Running == on.Declared && on.State == "running"}
	if on.Running == "" {
		applied.Message = node.Name + " runs none of it"
	}
	if node.Cause != "" {
		applied.Message += "; last apply " + node.Outcome + ": " + node.Cause
	}
	next := ""
	switch {
	case on.State == "failing":
		next = "mesh node show " + node.Name
	case on.Running != on.Declared:
		next = "mesh push " + node.Name
	}
	return append(facts, applied), next
}
