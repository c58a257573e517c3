package graph_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mesh-control/mesh/catalogue/graph"
	"github.com/mesh-control/mesh/schema"
)

func mod(name string, provides []string, requires ...string) graph.Module {
	m := graph.Module{Name: name}
	for _, p := range provides {
		m.Provides = append(m.Provides, schema.Provision{Name: p, Scope: "mesh"})
	}
	for _, r := range requires {
		optional := r[0] == '?'
		if optional {
			r = r[1:]
		}
		m.Requires = append(m.Requires, schema.Requirement{Name: r, Optional: optional})
	}
	return m
}

func TestClosureBringsProvidersFirst(t *testing.T) {
	g := graph.New([]graph.Module{
		mod("networking", nil, "private-network", "resolver"),
		mod("wireguard", []string{"private-network"}),
		mod("dns", []string{"resolver"}, "private-network"),
		mod("other", nil),
	})
	c := g.Closure([]string{"networking"}, nil)
	if want := []string{"wireguard", "dns", "networking"}; !slices.Equal(c.Modules, want) {
		t.Errorf("modules %v, want %v", c.Modules, want)
	}
	if got := c.Bound[graph.Edge{Module: "dns", Provision: "private-network"}]; got != "wireguard" {
		t.Errorf("dns is bound to %q", got)
	}
	if len(c.Unresolved)+len(c.Ambiguous)+len(c.Unknown) > 0 {
		t.Errorf("not whole: %+v", c)
	}
}

func TestClosureSaysWhatIsMissingAndWhatMustBeChosen(t *testing.T) {
	g := graph.New([]graph.Module{
		mod("web", nil, "postgresql", "mail", "?cache"),
		mod("pg15", []string{"postgresql"}), mod("pg16", []string{"postgresql"}),
		mod("redis", []string{"cache"}),
	})
	c := g.Closure([]string{"web", "nowhere"}, nil)
	if want := []graph.Need{{Module: "web", Provision: "postgresql", Providers: []string{"pg15", "pg16"}}}; !reflect.DeepEqual(c.Ambiguous, want) {
		t.Errorf("ambiguous %+v", c.Ambiguous)
	}
	if want := []graph.Need{{Module: "web", Provision: "mail"}}; !reflect.DeepEqual(c.Unresolved, want) {
		t.Errorf("unresolved %+v", c.Unresolved)
	}
	if !slices.Equal(c.Unknown, []string{"nowhere"}) || slices.Contains(c.Modules, "redis") {
		t.Errorf("unknown %v, modules %v", c.Unknown, c.Modules)
	}
	if c := g.Closure([]string{"web"}, map[string]string{"postgresql": "pg16"}); !slices.Contains(c.Modules, "pg16") || slices.Contains(c.Modules, "pg15") {
		t.Errorf("bound to pg16: %v", c.Modules)
	}
	if c := g.Closure([]string{"web", "pg15"}, nil); len(c.Ambiguous) > 0 {
		t.Errorf("the provider asked for is not chosen: %+v", c.Ambiguous)
	}
	if c := g.Closure([]string{"web"}, map[string]string{"postgresql": "redis"}); len(c.Unresolved) != 2 {
		t.Errorf("a binding to who does not provide: %+v", c.Unresolved)
	}
	if c := g.Closure([]string{"web", "redis"}, nil); c.Bound[graph.Edge{Module: "web", Provision: "cache"}] != "redis" {
		t.Errorf("optional requirement not bound to what is there: %v", c.Bound)
	}
}

func TestCyclesAndDependents(t *testing.T) {
	g := graph.New([]graph.Module{
		mod("a", []string{"pa"}, "pb"), mod("b", []string{"pb"}, "pc"), mod("c", []string{"pc"}, "pa"),
		mod("self", []string{"ps"}, "ps"), mod("d", []string{"pd"}, "pa"), mod("e", nil, "pd"),
	})
	if want := [][]string{{"a", "b", "c"}, {"self"}}; !reflect.DeepEqual(g.Cycles(), want) {
		t.Errorf("cycles %v", g.Cycles())
	}
	if want := []string{"a", "b", "c", "d", "e"}; !slices.Equal(g.Dependents("a"), want) {
		t.Errorf("dependents of a %v", g.Dependents("a"))
	}
	if want := []string{"e"}; !slices.Equal(g.Dependents("d"), want) {
		t.Errorf("dependents of d %v", g.Dependents("d"))
	}
	c := g.Closure([]string{"a"}, nil)
	if slices.Sort(c.Modules); !slices.Equal(c.Modules, []string{"a", "b", "c"}) {
		t.Errorf("closure of a circle %v", c.Modules)
	}
}

// In a graph without circles every provider stands before what is bound to it, and a closure
// is its own closure.
func TestClosureIsOrderedAndClosed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "modules")
		var modules []graph.Module
		for i := range n {
			var requires []string
			for j := range i {
				if rapid.Bool().Draw(t, "edge") {
					requires = append(requires, fmt.Sprintf("p%d", j))
				}
			}
			modules = append(modules, mod(fmt.Sprintf("m%d", i), []string{fmt.Sprintf("p%d", i)}, requires...))
		}
		g := graph.New(modules)
		c := g.Closure([]string{modules[n-1].Name}, nil)
		for edge, provider := range c.Bound {
			if slices.Index(c.Modules, provider) >= slices.Index(c.Modules, edge.Module) {
				t.Fatalf("%s stands after %s in %v", provider, edge.Module, c.Modules)
			}
		}
		again := g.Closure(c.Modules, nil)
		a, b := slices.Sorted(slices.Values(c.Modules)), slices.Sorted(slices.Values(again.Modules))
		if !slices.Equal(a, b) || len(g.Cycles()) > 0 {
			t.Fatalf("%v closes to %v; cycles %v", a, b, g.Cycles())
		}
	})
}
