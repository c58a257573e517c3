package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
	"github.com/mesh-control/mesh/schema"
)

func (a *app) buildsCommand() *cobra.Command {
	var in api.BuildListIn
	command := &cobra.Command{
		Use: "builds", Short: "What was built, and what became of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if in.Limit < 1 {
				return usage("--limit %d: at least 1", in.Limit)
			}
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				list, err := api.BuildList.Do(ctx, client, in)
				if err != nil {
					return err
				}
				return a.show(list, func() { a.printBuilds(list.Builds) })
			})
		},
	}
	command.Flags().StringVar(&in.Module, "module", "", "of this module only")
	command.Flags().IntVar(&in.Limit, "limit", 50, "at most so many")
	show := &cobra.Command{
		Use: "show ID", Short: "One build with phases, artifacts and the reason if it failed", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.showBuild(cmd, args[0], a.printBuild)
		},
	}
	command.AddCommand(show, a.buildLogsCommand(), a.buildCancelCommand())
	return command
}

func (a *app) buildLogsCommand() *cobra.Command {
	var follow bool
	command := &cobra.Command{
		Use: "logs ID", Short: "The log of a build", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow {
				return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error { return a.followLog(ctx, client, args[0]) })
			}
			return a.showBuild(cmd, args[0], func(out api.BuildShowOut) { fmt.Fprint(a.stdout, out.Log) })
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "print what the builder says as it says it, until the build ends")
	return command
}

// followLog prints a build's log as it grows. What was said before the controller in front
// of us began to listen is in the log of the ended build.
func (a *app) followLog(ctx context.Context, client *apiclient.Client, id string) error {
	shown, err := api.BuildShow.Do(ctx, client, api.BuildShowIn{ID: id})
	if err != nil {
		return err
	}
	if ended(shown.Build) {
		return a.show(shown, func() { fmt.Fprint(a.stdout, shown.Log) })
	}
	last, err := a.followBuilds(ctx, client, []string{shown.Build.ID}, func(_ string, progress schema.Progress) {
		if progress.Line != "" {
			fmt.Fprintln(a.stdout, progress.Line)
		}
	}, func(api.Build) {})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &outcome{code: exitTimeout, message: "timed out; the build goes on", hints: []string{"mesh builds logs -f " + short(shown.Build.ID)}}
	case err != nil:
		return err
	case len(last.Builds) == 1:
		fmt.Fprintln(a.stderr, "build "+short(last.Builds[0].ID)+": "+last.Builds[0].State)
	}
	return said(buildExit(last.Builds))
}

func (a *app) buildCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "End a build that waits or is under way; nothing it made is published", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				build, err := api.BuildCancel.Do(ctx, client, api.BuildCancelIn{ID: args[0]})
				if err != nil {
					return err
				}
				last, err := a.followBuilds(ctx, client, []string{build.ID}, func(string, schema.Progress) {}, func(api.Build) {})
				if err != nil {
					return err
				}
				return a.show(last, func() {
					for _, b := range last.Builds {
						fmt.Fprintf(a.stdout, "build %s of %s: %s\n", short(b.ID), buildName(b), b.State)
					}
				})
			})
		},
	}
}

func (a *app) showBuild(cmd *cobra.Command, id string, write func(api.BuildShowOut)) error {
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		out, err := api.BuildShow.Do(ctx, client, api.BuildShowIn{ID: id})
		if err != nil {
			return err
		}
		return a.show(out, func() { write(out) })
	})
}

func (a *app) printBuilds(builds []api.Build) {
	rows := make([][]string, 0, len(builds))
	for _, b := range builds {
		note := "-"
		if b.Error != nil {
			note = b.Error.Reason + ": " + firstLine(b.Error.Message)
		}
		rows = append(rows, []string{short(b.ID), buildName(b), b.State, short(b.Digest), short(b.Commit), ago(b.Requested), took(b.Started, b.Ended), orDash(b.Builder), note})
	}
	table(a.stdout, "nothing was ever built", []string{"BUILD", "MODULE", "STATE", "MANIFEST", "COMMIT", "ASKED", "TOOK", "BUILDER", "NOTE"}, rows)
}

// movedTo is the commit that was built, with the one noticed where that was another.
func movedTo(b api.Build) string {
	if b.Moved {
		return b.Commit + ", newer than " + short(b.Noticed) + ", which was noticed"
	}
	return orDash(b.Commit)
}

func (a *app) printBuild(out api.BuildShowOut) {
	b := out.Build
	fmt.Fprintf(a.stdout, "build     %s\nmodule    %s\nfrom      %s\nref       %s\ncommit    %s\nstate     %s\nmanifest  %s\nbuilder   %s\nasked     %s\ntook      %s\n",
		b.ID, orDash(b.Module), place(b.Repository, b.Path), orDash(b.Ref), movedTo(b), b.State, orDash(b.Digest), orDash(b.Builder), ago(b.Requested), took(b.Started, b.Ended))
	if b.Error != nil {
		fmt.Fprintf(a.stdout, "reason    %s\nmessage   %s\nremedy    %s\n", b.Error.Reason, strings.ReplaceAll(b.Error.Message, "\n", "\n          "), orDash(b.Error.Remedy))
	}
	for _, phase := range b.Phases {
		fmt.Fprintf(a.stdout, "phase     %-10s %-14s %d ms\n", phase.Phase, phase.Artifact, phase.Millis)
	}
	for _, name := range slices.Sorted(maps.Keys(out.Artifacts)) {
		artifact := out.Artifacts[name]
		fmt.Fprintf(a.stdout, "artifact  %-10s %-14s %s\n", artifact.Kind, name, artifact.Digest)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Reproducible)) {
		fmt.Fprintf(a.stdout, "twice     %-10s %s\n", name, reproduced(b.Reproducible[name]))
	}
	if b.Provenance != "" {
		fmt.Fprintf(a.stdout, "signed    %s\n", b.Provenance)
	}
}
