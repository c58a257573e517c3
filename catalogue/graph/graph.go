// Package graph answers questions about what modules provide and require: who provides, what
// an assignment brings along, what nobody provides, where two could, and what goes round in
// circles. It is pure: values in, values out, in an order that depends on nothing but them.
// It imports no database, so that composition can use it.
package graph

import (
	"maps"
	"slices"

	"github.com/mesh-control/mesh/schema"
)

// Module is what the graph knows of one module.
type Module struct {
	Name     string
	Provides []schema.Provision
	Requires []schema.Requirement
}

// OfModule is a source's part in the graph.
func OfModule(m *schema.Module) Module {
	return Module{Name: m.Name, Provides: m.Provides, Requires: m.Requires}
}

// OfManifest is a built module's part in the graph.
func OfManifest(m *schema.Manifest) Module {
	return Module{Name: m.Module, Provides: m.Provides, Requires: m.Requires}
}

// Graph is what a set of modules provide and require. It does not change.
type Graph struct {
	modules   map[string]Module
	providers map[string][]string // provision -> modules, sorted
}

// New makes a graph. Of two modules with one name the later counts.
func New(modules []Module) *Graph {
	g := &Graph{modules: map[string]Module{}, providers: map[string][]string{}}
	for _, m := range modules {
		g.modules[m.Name] = m
	}
	for _, name := range slices.Sorted(maps.Keys(g.modules)) {
		for _, p := range g.modules[name].Provides {
			if !slices.Contains(g.providers[p.Name], name) {
				g.providers[p.Name] = append(g.providers[p.Name], name)
			}
		}
	}
	return g
}

// Has says whether the graph knows a module.
func (g *Graph) Has(module string) bool { _, ok := g.modules[module]; return ok }

// Modules are all names, sorted.
func (g *Graph) Modules() []string { return slices.Sorted(maps.Keys(g.modules)) }

// Providers are the modules that provide a provision, sorted.
func (g *Graph) Providers(provision string) []string { return slices.Clone(g.providers[provision]) }

// Provision is what module provides under that name.
func (g *Graph) Provision(module, provision string) (schema.Provision, bool) {
	for _, p := range g.modules[module].Provides {
		if p.Name == provision {
			return p, true
		}
	}
	return schema.Provision{}, false
}

// Need is a requirement of a module that the graph alone does not answer.
type Need struct {
	Module    string
	Provision string
	Optional  bool
	// Providers are the modules that could: none (unresolved) or several (ambiguous).
	Providers []string
}

// Unresolved are the requirements nobody provides, optional ones included and marked.
func (g *Graph) Unresolved() []Need { return g.needs(func(n int) bool { return n == 0 }) }

// Ambiguous are the requirements several modules provide; an assignment must bind one.
func (g *Graph) Ambiguous() []Need { return g.needs(func(n int) bool { return n > 1 }) }

func (g *Graph) needs(count func(int) bool) []Need {
	var needs []Need
	for _, name := range g.Modules() {
		for _, r := range g.modules[name].Requires {
			if providers := g.providers[r.Name]; count(len(providers)) {
				needs = append(needs, Need{name, r.Name, r.Optional, slices.Clone(providers)})
			}
		}
	}
	return needs
}

// Closure is what a set of modules brings along.
type Closure struct {
	// Modules are those asked for and their providers, providers before what requires them;
	// modules in a circle stand in the order they were met.
	Modules []string
	// Bound maps each module's requirement to the provider chosen for it.
	Bound map[Edge]string
	// Unresolved and Ambiguous keep an assignment from being whole.
	Unresolved []Need
	Ambiguous  []Need
	// Unknown are modules asked for that the graph does not have.
	Unknown []string
}

// Edge is one module's requirement.
type Edge struct{ Module, Provision string }

// Closure follows the requirements of modules. bindings choose a provider by provision; where
// there is no choice none is needed, and a provider that is itself asked for is preferred.
// Optional requirements bind what is asked for or bound, and bring nothing along.
func (g *Graph) Closure(modules []string, bindings map[string]string) Closure {
	w := &closing{graph: g, bindings: bindings, asked: map[string]bool{}, state: map[string]bool{}}
	w.closure.Bound = map[Edge]string{}
	wanted := slices.Sorted(slices.Values(modules))
	wanted = slices.Compact(wanted)
	for _, m := range wanted {
		if !g.Has(m) {
			w.closure.Unknown = append(w.closure.Unknown, m)
			continue
		}
		w.asked[m] = true
	}
	for _, m := range wanted {
		if w.asked[m] {
			w.visit(m)
		}
	}
	return w.closure
}

type closing struct {
	graph    *Graph
	bindings map[string]string
	asked    map[string]bool
	state    map[string]bool // met
	closure  Closure
}

func (w *closing) visit(module string) {
	if w.state[module] {
		return
	}
	w.state[module] = true
	for _, r := range w.graph.modules[module].Requires {
		provider, need := w.choose(module, r)
		switch {
		case provider != "":
			w.closure.Bound[Edge{module, r.Name}] = provider
			w.visit(provider)
		case r.Optional:
		case len(need.Providers) == 0:
			w.closure.Unresolved = append(w.closure.Unresolved, need)
		default:
			w.closure.Ambiguous = append(w.closure.Ambiguous, need)
		}
	}
	w.closure.Modules = append(w.closure.Modules, module)
}

func (w *closing) choose(module string, r schema.Requirement) (string, Need) {
	providers := w.graph.providers[r.Name]
	need := Need{module, r.Name, r.Optional, slices.Clone(providers)}
	if bound, ok := w.bindings[r.Name]; ok {
		if slices.Contains(providers, bound) {
			return bound, need
		}
		need.Providers = nil
		return "", need
	}
	var asked []string
	for _, p := range providers {
		if w.asked[p] {
			asked = append(asked, p)
		}
	}
	switch {
	case len(asked) == 1:
		return asked[0], need
	case r.Optional:
		return "", need
	case len(providers) == 1:
		return providers[0], need
	}
	return "", need
}

// Dependents are the modules that require, directly or through others, something module
// provides; sorted, without module itself unless it stands in a circle.
func (g *Graph) Dependents(module string) []string {
	dependents := map[string]bool{}
	queue := []string{module}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for name, m := range g.modules {
			if !dependents[name] && requiresOf(m, g.modules[at].Provides) {
				dependents[name] = true
				queue = append(queue, name)
			}
		}
	}
	return slices.Sorted(maps.Keys(dependents))
}

func requiresOf(m Module, provided []schema.Provision) bool {
	for _, r := range m.Requires {
		for _, p := range provided {
			if p.Name == r.Name {
				return true
			}
		}
	}
	return false
}
