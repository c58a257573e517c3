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
	var in api.TraceIn
	command := &cobra.Command{
		Use: "trace COMMIT|DIGEST|BUILD|MODULE|NODE", Short: "Did it go out? From commit to build to manifest to the machines", Args: cobra.ExactArgs(1),
		Long: "Follow a commit, a manifest's digest, a build, a module or all modules of a node\n" +
			"from commit to build to manifest to declaration to what runs. A commit, digest or\n" +
			"build can be cut to its first four digits.\n\n" +
			"The line \"signed\" says what a builder signed of the build, checked against its key, the\n" +
			"manifest's digest and what the mesh recorded: verified; or missing, unreachable, altered,\n" +
			"unknown-key, withdrawn or contradicts, each with the reason.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				in.Subject = args[0]
				trace, err := api.ModuleTrace.Do(ctx, client, in)
				switch {
				case err != nil:
					return err
				case in.SBOM:
					return a.showSBOMs(trace)
				}
				return a.show(trace, func() { a.printTrace(trace) })
			})
		},
	}
	command.Flags().BoolVar(&in.SBOM, "sbom", false, "print what its bundles were made of, one CycloneDX document each, as their builder signed for them")
	return command
}

// showSBOMs prints the documents byte for byte.
func (a *app) showSBOMs(trace api.TraceOut) error {
	if len(trace.SBOMs) == 0 {
		states := []string{}
		for _, chain := range trace.Chains {
			if chain.Check != nil {
				states = append(states, chain.Module+": provenance "+chain.Check.State)
			}
		}
		return &outcome{
			code: exitFailed, message: "no signed list of what bundles of " + trace.Subject + " were made of", hints: append(states, "mesh trace "+trace.Subject),
		}
	}
	return a.show(trace, func() {
		for _, list := range trace.SBOMs {
			if list.Signed != api.ProvenanceVerified {
				fmt.Fprintf(a.stderr, "mesh: trace: the provenance of %s is not verified: %s\n", list.Module, list.Signed)
			}
			fmt.Fprint(a.stdout, list.Document)
		}
	})
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
	if chain.Check != nil {
		line("signed", "%s", signed(*chain.Check))
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

// signed says who built what when, or why nobody can be believed to have said so.
func signed(check api.ProvenanceCheck) string {
	if check.State != api.ProvenanceVerified {
		return "NOT VERIFIED, " + check.State + ": " + firstLine(check.Message)
	}
	text := fmt.Sprintf("%s: builder %s made it of commit %s in build %s, %s, took %s",
		check.State, check.Builder, short(check.Commit), short(check.Build), ago(check.Finished), took(check.Started, check.Finished))
	if check.Message != "" {
		text += "; " + check.Message
	}
	return text
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
