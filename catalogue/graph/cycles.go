package graph

import (
	"slices"
	"strings"
)

// Cycles are the circles of requirements: each a set of modules of which every one requires,
// through the others, itself. Sorted within and among themselves.
func (g *Graph) Cycles() [][]string {
	t := &tarjan{graph: g, index: map[string]int{}, low: map[string]int{}, on: map[string]bool{}}
	for _, m := range g.Modules() {
		if _, met := t.index[m]; !met {
			t.visit(m)
		}
	}
	slices.SortFunc(t.cycles, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return t.cycles
}

// tarjan finds strongly connected components (R. Tarjan, 1972).
type tarjan struct {
	graph  *Graph
	index  map[string]int
	low    map[string]int
	on     map[string]bool
	stack  []string
	cycles [][]string
}

func (t *tarjan) visit(m string) {
	t.index[m], t.low[m] = len(t.index), len(t.index)
	t.stack = append(t.stack, m)
	t.on[m] = true
	itself := false
	for _, next := range t.graph.needed(m) {
		itself = itself || next == m
		if _, met := t.index[next]; !met {
			t.visit(next)
			t.low[m] = min(t.low[m], t.low[next])
		} else if t.on[next] {
			t.low[m] = min(t.low[m], t.index[next])
		}
	}
	if t.low[m] != t.index[m] {
		return
	}
	at := slices.Index(t.stack, m)
	component := slices.Clone(t.stack[at:])
	t.stack = t.stack[:at]
	for _, member := range component {
		t.on[member] = false
	}
	if len(component) > 1 || itself {
		slices.Sort(component)
		t.cycles = append(t.cycles, component)
	}
}

// needed are the modules that provide what m requires, sorted.
func (g *Graph) needed(m string) []string {
	var needed []string
	for _, r := range g.modules[m].Requires {
		needed = append(needed, g.providers[r.Name]...)
	}
	slices.Sort(needed)
	return slices.Compact(needed)
}
