package compose

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// Scopes of a provision.
const (
	scopeNode = "node"
	scopeMesh = "mesh"
)

// Binding is the provider a requirement is met by.
type Binding struct {
	Provision string
	Module    string // or FoundationModule
	Node      string // empty for the foundation
	Host      string
	Port      int
	Grants    string // directory on the provider's node; empty gives no credential
}

// BuiltIn says that the foundation provides it.
func (b Binding) BuiltIn() bool { return b.Module == FoundationModule }

// Placed is a module on the node, with what its requirements are bound to.
type Placed struct {
	Assignment Assignment
	Brought    bool // by a requirement, not by an assignment
	Bindings   map[string]Binding
	Blocked    []api.Blocked
}

// Resolution is which modules a node has, sorted by name.
type Resolution struct {
	Modules []Placed
}

// Brought lists the assignments that follow from requirements and are not made yet.
func (r Resolution) Brought() []Assignment {
	var out []Assignment
	for _, placed := range r.Modules {
		if placed.Brought {
			out = append(out, placed.Assignment)
		}
	}
	return out
}

// Resolve decides a node's modules. A requirement is met, in this order, by what the
// assignment binds, by a module on the node, by a mesh-scoped provider on any node, by the
// foundation, and otherwise by bringing along the one module that provides it. Several at
// the same step are ambiguous.
func Resolve(mesh Mesh, node string) Resolution {
	r := newResolver(mesh, node)
	r.closure()
	var out Resolution
	for _, name := range slices.Sorted(maps.Keys(r.here)) {
		placed := Placed{Assignment: r.here[name], Brought: r.brought[name], Bindings: map[string]Binding{}}
		for _, requirement := range mesh.Manifests[name].Document.Requires {
			binding, blocked := r.bind(placed.Assignment, requirement.Name)
			switch {
			case binding != nil:
				placed.Bindings[requirement.Name] = *binding
			case blocked.Reason == Unresolved && requirement.Optional:
			default:
				placed.Blocked = append(placed.Blocked, *blocked)
			}
		}
		out.Modules = append(out.Modules, placed)
	}
	return out
}

type resolver struct {
	mesh      Mesh
	node      string
	nodes     map[string]Node
	here      map[string]Assignment                   // modules of the node
	brought   map[string]bool                         // those of here that no assignment made
	providers map[string][]Binding                    // provision to mesh-scoped, assigned providers
	known     map[string][]string                     // provision to modules that could provide it
	declared  map[string]map[string]*schema.Provision // module to provision
}

func newResolver(mesh Mesh, node string) *resolver {
	r := &resolver{
		mesh: mesh, node: node,
		nodes: map[string]Node{}, here: map[string]Assignment{}, brought: map[string]bool{},
		providers: map[string][]Binding{}, known: map[string][]string{},
		declared: map[string]map[string]*schema.Provision{},
	}
	for _, n := range mesh.Nodes {
		r.nodes[n.Name] = n
	}
	for _, module := range slices.Sorted(maps.Keys(mesh.Manifests)) {
		r.declared[module] = map[string]*schema.Provision{}
		document := mesh.Manifests[module].Document
		for i := range document.Provides {
			provision := &document.Provides[i]
			r.declared[module][provision.Name] = provision
			r.known[provision.Name] = append(r.known[provision.Name], module)
		}
	}
	for _, assignment := range mesh.Assignments {
		if assignment.Node == node {
			r.here[assignment.Module] = assignment
		}
		for name, provision := range r.declared[assignment.Module] {
			if provision.Scope == scopeMesh {
				r.providers[name] = append(r.providers[name], r.binding(assignment.Module, assignment.Node, provision))
			}
		}
	}
	for _, list := range r.providers {
		sort.Slice(list, func(i, j int) bool { return list[i].label() < list[j].label() })
	}
	return r
}

func (r *resolver) binding(module, node string, provision *schema.Provision) Binding {
	return Binding{
		Provision: provision.Name, Module: module, Node: node,
		Host: r.nodes[node].Address, Port: provision.Port, Grants: provision.Grants,
	}
}

func (b Binding) label() string {
	if b.BuiltIn() {
		return FoundationModule
	}
	return b.Module + "@" + b.Node
}

// closure adds, round by round, the only known provider of whatever nothing present meets.
// A round looks at the state before it, so the order of modules decides nothing.
func (r *resolver) closure() {
	for {
		add := map[string]bool{}
		for name, assignment := range r.here {
			for _, requirement := range r.mesh.Manifests[name].Document.Requires {
				if module := r.bring(assignment, requirement); module != "" {
					add[module] = true
				}
			}
		}
		if len(add) == 0 {
			return
		}
		for module := range add {
			r.here[module] = Assignment{Module: module, Node: r.node}
			r.brought[module] = true
		}
	}
}

// bring names the module to bring along for a requirement, or "".
func (r *resolver) bring(assignment Assignment, requirement schema.Requirement) string {
	if bound, ok := assignment.Bindings[requirement.Name]; ok {
		module, node, _ := strings.Cut(bound, "@")
		if node != r.node || r.declared[module][requirement.Name] == nil {
			return ""
		}
		if _, present := r.here[module]; present {
			return ""
		}
		return module
	}
	if requirement.Optional || len(r.candidates(requirement.Name)) > 0 {
		return ""
	}
	if known := r.known[requirement.Name]; len(known) == 1 {
		return known[0]
	}
	return ""
}

// candidates are the present providers at the first step that has any.
func (r *resolver) candidates(provision string) []Binding {
	var local []Binding
	for _, module := range slices.Sorted(maps.Keys(r.here)) {
		if declared := r.declared[module][provision]; declared != nil && declared.Scope != scopeMesh {
			local = append(local, r.binding(module, r.node, declared))
		}
	}
	if len(local) > 0 {
		return local
	}
	all := slices.Clone(r.providers[provision])
	for _, module := range slices.Sorted(maps.Keys(r.brought)) {
		if declared := r.declared[module][provision]; declared != nil && declared.Scope == scopeMesh {
			all = append(all, r.binding(module, r.node, declared))
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, builtIn := range r.mesh.BuiltIn {
		if builtIn.Provision == provision {
			return []Binding{{Provision: provision, Module: FoundationModule, Host: builtIn.Host, Port: builtIn.Port}}
		}
	}
	return nil
}

func (r *resolver) bind(assignment Assignment, provision string) (*Binding, *api.Blocked) {
	if bound, ok := assignment.Bindings[provision]; ok {
		return r.bound(assignment, provision, bound)
	}
	candidates := r.candidates(provision)
	switch len(candidates) {
	case 1:
		return &candidates[0], nil
	case 0:
		return nil, r.unmet(assignment, provision)
	}
	labels := make([]string, len(candidates))
	for i, candidate := range candidates {
		labels[i] = candidate.label()
	}
	return nil, ambiguous(assignment, provision, labels, labels[0])
}

// bound is the provider an assignment names itself.
func (r *resolver) bound(assignment Assignment, provision, bound string) (*Binding, *api.Blocked) {
	module, node, _ := strings.Cut(bound, "@")
	unmet := &api.Blocked{
		Module: assignment.Module, Reason: Unresolved,
		Remedy: fmt.Sprintf("mesh assign %s --node %s, or bind %s to another", module, node, provision),
	}
	declared := r.declared[module][provision]
	if declared == nil {
		unmet.Message = fmt.Sprintf("%s is bound to %s, which does not provide it", provision, bound)
		return nil, unmet
	}
	if node != r.node && declared.Scope != scopeMesh {
		unmet.Message = fmt.Sprintf("%s is bound to %s, but its scope is the node", provision, bound)
		return nil, unmet
	}
	present := false
	if node == r.node {
		_, present = r.here[module]
	}
	for _, other := range r.mesh.Assignments {
		present = present || other.Module == module && other.Node == node
	}
	if !present {
		unmet.Message = fmt.Sprintf("%s is bound to %s, which is not assigned", provision, bound)
		return nil, unmet
	}
	binding := r.binding(module, node, declared)
	return &binding, nil
}

func (r *resolver) unmet(assignment Assignment, provision string) *api.Blocked {
	if known := r.known[provision]; len(known) > 1 {
		return ambiguous(assignment, provision, known, known[0]+"@"+r.node)
	}
	return &api.Blocked{
		Module: assignment.Module, Reason: Unresolved,
		Message: fmt.Sprintf("nothing provides %s", provision),
		Remedy:  fmt.Sprintf("build and assign a module that provides %s", provision),
	}
}

func ambiguous(assignment Assignment, provision string, labels []string, first string) *api.Blocked {
	return &api.Blocked{
		Module: assignment.Module, Reason: Ambiguous,
		Message: fmt.Sprintf("%s is provided by %s", provision, strings.Join(labels, ", ")),
		Remedy:  fmt.Sprintf("mesh assign %s --node %s --bind %s=%s", assignment.Module, assignment.Node, provision, first),
	}
}
