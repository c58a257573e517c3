package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) traceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "trace COMMIT|DIGEST|BUILD|MODULE|NODE", Short: "Did it go out? From commit to build to manifest to the machines", Args: cobra.ExactArgs(1),
		Long: "Follow a commit, a manifest's digest, a build, a module or all modules of a node\n" +
			"from commit to build to manifest to declaration to what runs. A commit, digest or\n" +
			"build can be cut to its first four digits.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				trace, err := api.ModuleTrace.Do(ctx, client, api.TraceIn{Subject: args[0]})
				if err != nil {
					return err
				}
				return a.show(trace, func() { a.printTrace(trace) })
			})
		},
	}
}

func (a *app) printTrace(trace api.TraceOut) {
	if len(trace.Chains) == 0 {
		fmt.Fprintf(a.stdout, "no modules on %s\n", trace.Subject)
	}
	for i, chain := range trace.Chains {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		a.printChain(chain)
	}
}

func (a *app) printChain(chain api.TraceChain) {
	line := func(heading, format string, args ...any) {
		fmt.Fprintf(a.stdout, "%-9s %s\n", heading, fmt.Sprintf(format, args...))
	}
	if chain.Module != "" {
		line("module", "%s", chain.Module)
	}
	line("source", "%s", place(chain.Repository, chain.Path))
	if chain.Commit != "" {
		seen := ""
		if !chain.Seen.IsZero() {
			seen = "  seen " + ago(chain.Seen)
		}
		line("commit", "%s%s", short(chain.Commit), seen)
	}
	for _, build := range chain.Builds {
		text := fmt.Sprintf("%s  %s", short(build.ID), build.State)
		if !build.Ended.IsZero() {
			text += fmt.Sprintf("  %s by %s, took %s", ago(build.Ended), orDash(build.Builder), took(build.Started, build.Ended))
		}
		line("build", "%s", text)
	}
	if chain.Digest != "" {
		current := ""
		if !chain.Current {
			current = "  the mesh holds another by now"
		}
		line("manifest", "%s%s", short(chain.Digest), current)
	}
	if chain.Provenance != "" {
		line("signed", "%s", short(chain.Provenance))
	}
	if len(chain.Nodes) > 0 {
		rows := make([][]string, 0, len(chain.Nodes))
		for _, node := range chain.Nodes {
			rows = append(rows, traceRow(node))
		}
		fmt.Fprintln(a.stdout)
		table(a.stdout, "", []string{"NODE", "STATE", "GENERATION", "PUSHED", "BY", "APPLIED", "RUNS", "NOTE"}, rows)
		fmt.Fprintln(a.stdout)
	}
	line("answer", "%s", chain.Answer)
	if chain.Next != "" {
		line("next", "%s", chain.Next)
	}
}

func traceRow(node api.TraceNode) []string {
	generation, pushed, applied := "-", "-", "-"
	if node.Generation > 0 {
		generation, pushed = strconv.FormatInt(node.Generation, 10), ago(node.PushedAt)
	}
	if !node.AppliedAt.IsZero() {
		applied = ago(node.AppliedAt)
	}
	return []string{node.Node, node.State, generation, pushed, orDash(node.PushedBy), applied, short(node.Running), orDash(firstLine(node.Note))}
}
