package reconcile

import (
	"context"
	"slices"

	"github.com/mesh-control/mesh/catalogue/graph"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// graph gives what modules provide and require, or the part of it round one module.
func (g *glance) graph(ctx context.Context, q inventory.Queryer, in api.GraphIn) (api.GraphOut, error) {
	out := api.GraphOut{Modules: []api.GraphModule{}, Edges: []api.GraphEdge{}}
	parts, err := g.builds.Parts(ctx, q)
	if err != nil {
		return out, err
	}
	whole := graph.New(parts)
	shown := whole.Modules()
	if in.Module != "" {
		if !whole.Has(in.Module) {
			return out, unknownModule(in.Module)
		}
		shown = round(whole, in)
	}
	statuses, err := g.builds.Statuses(ctx, q)
	if err != nil {
		return out, err
	}
	byName := map[string]api.ModuleStatus{}
	for _, status := range statuses {
		byName[status.Module] = status
	}
	for _, part := range parts {
		if !slices.Contains(shown, part.Name) {
			continue
		}
		module := api.GraphModule{Module: part.Name, State: byName[part.Name].State, Nodes: byName[part.Name].Nodes}
		for _, provision := range part.Provides {
			module.Provides = append(module.Provides, provision.Name)
		}
		out.Modules = append(out.Modules, module)
		for _, requirement := range part.Requires {
			out.Edges = append(out.Edges, edge(whole, part.Name, requirement))
		}
	}
	for _, cycle := range whole.Cycles() {
		if slices.ContainsFunc(cycle, func(m string) bool { return slices.Contains(shown, m) }) {
			out.Cycles = append(out.Cycles, cycle)
		}
	}
	return out, nil
}

// round lists a module with what it brings along, every possible provider of what is
// ambiguous included, or with what depends on it.
func round(whole *graph.Graph, in api.GraphIn) []string {
	if in.Dependents {
		shown := append(whole.Dependents(in.Module), in.Module)
		slices.Sort(shown)
		return slices.Compact(shown)
	}
	closure := whole.Closure([]string{in.Module}, nil)
	shown := closure.Modules
	for _, need := range closure.Ambiguous {
		shown = append(shown, need.Providers...)
	}
	slices.Sort(shown)
	return slices.Compact(shown)
}

func edge(whole *graph.Graph, module string, requirement schema.Requirement) api.GraphEdge {
	e := api.GraphEdge{Module: module, Provision: requirement.Name, Optional: requirement.Optional, Providers: whole.Providers(requirement.Name)}
	switch len(e.Providers) {
	case 0:
		e.State, e.Providers = api.EdgeUnresolved, []string{}
	case 1:
		e.State = api.EdgeResolved
	default:
		e.State = api.EdgeAmbiguous
	}
	return e
}

func unknownModule(name string) error {
	return &api.Error{Code: api.CodeNotFound, Message: "there is no module " + name, Remedy: "mesh status"}
}
