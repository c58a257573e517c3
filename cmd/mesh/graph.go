package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) graphCommand() *cobra.Command {
	var in api.GraphIn
	command := &cobra.Command{
		Use: "graph [MODULE]", Short: "What modules require, and who provides it", Args: cobra.MaximumNArgs(1),
		Long: "What modules require and who provides it: of the whole mesh, of what a module brings\n" +
			"along, or with --dependents of what depends on it.",
		Annotations: map[string]string{outputs: "text dot mermaid json"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				in.Module = args[0]
			}
			if in.Dependents && in.Module == "" {
				return usage("--dependents of which module? mesh graph MODULE --dependents")
			}
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				graph, err := api.ModuleGraph.Do(ctx, client, in)
				if err != nil {
					return err
				}
				return a.show(graph, func() {
					switch a.output {
					case "dot":
						a.printDot(graph)
					case "mermaid":
						a.printMermaid(graph)
					default:
						a.printGraph(graph)
					}
				})
			})
		},
	}
	command.Flags().BoolVar(&in.Dependents, "dependents", false, "what depends on the module, instead of what it brings along")
	return command
}

func (a *app) printGraph(graph api.GraphOut) {
	if len(graph.Modules) == 0 {
		fmt.Fprintln(a.stdout, "no modules")
	}
	for _, module := range graph.Modules {
		fmt.Fprintf(a.stdout, "%s (%s)%s\n", module.Module, module.State, listed(" on ", module.Nodes))
		if len(module.Provides) > 0 {
			fmt.Fprintf(a.stdout, "  provides %s\n", strings.Join(module.Provides, ", "))
		}
		for _, edge := range graph.Edges {
			if edge.Module == module.Module {
				fmt.Fprintf(a.stdout, "  requires %s: %s\n", edge.Provision, provided(edge))
			}
		}
	}
	for _, cycle := range graph.Cycles {
		fmt.Fprintf(a.stdout, "in a circle: %s\n", strings.Join(append(cycle, cycle[0]), " -> "))
	}
}

func listed(before string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return before + strings.Join(names, ", ")
}

// provided says in words who satisfies a requirement.
func provided(edge api.GraphEdge) string {
	text := strings.Join(edge.Providers, ", ")
	switch edge.State {
	case api.EdgeUnresolved:
		text = "nobody provides it"
	case api.EdgeAmbiguous:
		text = "one of " + text + "; an assignment binds one with --bind " + edge.Provision + "=MODULE"
	}
	if edge.Optional {
		text += " (optional)"
	}
	return text
}

// Names of modules and provisions are letters, digits and dashes (schema.Module), so that
// quotes are all the escaping that DOT and Mermaid need.

// printDot writes the graph for Graphviz. A requirement nobody provides points to a node of
// its own.
func (a *app) printDot(graph api.GraphOut) {
	fmt.Fprintln(a.stdout, "digraph mesh {\n  rankdir=LR;\n  node [shape=box];")
	for _, module := range graph.Modules {
		fmt.Fprintf(a.stdout, "  %q [label=\"%s\\n%s%s\"];\n", module.Module, module.Module, module.State, listed(" on ", module.Nodes))
	}
	for _, edge := range graph.Edges {
		style := "solid"
		if edge.State != api.EdgeResolved {
			style = "dashed"
		}
		providers := edge.Providers
		if edge.State == api.EdgeUnresolved {
			fmt.Fprintf(a.stdout, "  \"?%s\" [label=\"nobody provides\\n%s\", color=red];\n", edge.Provision, edge.Provision)
			providers = []string{"?" + edge.Provision}
		}
		for _, provider := range providers {
			fmt.Fprintf(a.stdout, "  %q -> %q [label=%q, style=%s];\n", edge.Module, provider, edge.Provision, style)
		}
	}
	fmt.Fprintln(a.stdout, "}")
}

// printMermaid writes the graph as a flowchart, as forges draw it in Markdown.
func (a *app) printMermaid(graph api.GraphOut) {
	fmt.Fprintln(a.stdout, "flowchart LR")
	for _, module := range graph.Modules {
		fmt.Fprintf(a.stdout, "  m-%s[\"%s<br/>%s%s\"]\n", module.Module, module.Module, module.State, listed(" on ", module.Nodes))
	}
	for _, edge := range graph.Edges {
		arrow := "-->"
		if edge.State != api.EdgeResolved {
			arrow = "-.->"
		}
		if edge.State == api.EdgeUnresolved {
			fmt.Fprintf(a.stdout, "  m-%s %s|%s| p-%s{{\"nobody provides %s\"}}\n", edge.Module, arrow, edge.Provision, edge.Provision, edge.Provision)
		}
		for _, provider := range edge.Providers {
			fmt.Fprintf(a.stdout, "  m-%s %s|%s| m-%s\n", edge.Module, arrow, edge.Provision, provider)
		}
	}
}
