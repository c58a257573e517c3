package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
	"github.com/mesh-control/mesh/schema"
)

func (a *app) buildCommand() *cobra.Command {
	var in api.BuildRequestIn
	var logs bool
	command := &cobra.Command{
		Use:   "build --behind | build URL [PATH] [--ref R]",
		Short: "Have a builder build what is behind, or one repository and path",
		Long: "Have a builder build what is behind, or one repository and path.\n" +
			"Building delivers nothing: a node keeps what it has until a push.\n\n" + exitHelp,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := buildInput(&in, args); err != nil {
				return err
			}
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error { return a.build(ctx, client, in, logs) })
		},
	}
	command.Flags().BoolVar(&in.Behind, "behind", false, "build every module that is behind")
	command.Flags().BoolVar(&in.Retry, "retry", false, "with --behind: also what failed before with this very source")
	command.Flags().StringVar(&in.Ref, "ref", "", "branch, tag or full ref to build (default the one tracked, or the remote's HEAD)")
	command.Flags().BoolVar(&in.Verify, "verify", false, "make every artifact twice, and say where two of one differ")
	command.Flags().BoolVar(&logs, "logs", false, "print what the builder says, not only its phases")
	return command
}

func buildInput(in *api.BuildRequestIn, args []string) error {
	switch {
	case in.Behind && len(args) > 0:
		return usage("--behind and a repository are different requests: one asks what needs building, the other names it")
	case in.Behind && in.Ref != "":
		return usage("--behind builds each module from its own recorded ref; --ref goes with a repository")
	case !in.Behind && len(args) == 0:
		return usage("say what to build: --behind, or a repository URL and a path in it")
	case in.Retry && !in.Behind:
		return usage("--retry goes with --behind; a named repository is always built")
	}
	if len(args) > 0 {
		in.Repository = args[0]
	}
	if len(args) > 1 {
		in.Path = args[1]
	}
	return nil
}

func (a *app) build(ctx context.Context, client *apiclient.Client, in api.BuildRequestIn, logs bool) error {
	requested, err := api.BuildRequest.Do(ctx, client, in)
	if err != nil {
		return err
	}
	if len(requested.Builds) == 0 {
		return a.nothingToBuild(ctx, client)
	}
	if requested.Consumers == 0 {
		fmt.Fprintln(a.stderr, "no builder is taking work; the builds wait in the queue")
	}
	ids := make([]string, len(requested.Builds))
	for i, build := range requested.Builds {
		ids[i] = build.ID
		if build.Joined {
			fmt.Fprintf(a.stderr, "%s was asked for already and has not ended; this waits for it\n", buildName(build))
		}
	}
	last, err := a.watchBuilds(ctx, client, ids, func(name string, progress schema.Progress) {
		switch {
		case progress.Line == "":
			a.phase(name, progress)
		case logs:
			fmt.Fprintf(a.stderr, "  %s  %-12s %s\n", progress.At.Local().Format(time.TimeOnly), name, progress.Line)
		}
	})
	if errors.Is(err, context.DeadlineExceeded) {
		message := "timed out; the builds go on"
		if last.Consumers == 0 {
			message = "no builder is taking work; the builds stay in the queue"
		}
		return &outcome{code: exitTimeout, message: message, hints: []string{"mesh builds shows how far they are"}}
	}
	if err != nil {
		return err
	}
	if a.output == "json" {
		err = a.show(last, nil)
	}
	return errors.Join(err, said(buildExit(last.Builds)))
}

// nothingToBuild says why: nothing is behind, or what is failed with the source it has now.
func (a *app) nothingToBuild(ctx context.Context, client *apiclient.Client) error {
	behind, err := api.ModuleBehind.Do(ctx, client, api.None{})
	if err != nil {
		return err
	}
	var names []string
	for _, m := range behind.Modules {
		names = append(names, m.Module)
	}
	if len(names) == 0 {
		defer a.printBroken(behind.Broken)
		return a.show(api.BuildWatchOut{}, func() { fmt.Fprintln(a.stdout, "nothing is behind") })
	}
	return &outcome{
		code: exitPartly, message: "nothing new to build; these failed with the very source they have: " + strings.Join(names, ", "),
		hints: []string{"correct them and commit; mesh why NAME says what failed", "mesh build --behind --retry builds them once more"},
	}
}

func buildExit(builds []api.Build) int {
	failed := 0
	for _, build := range builds {
		if !succeeded(build.State) {
			failed++
		}
	}
	switch {
	case failed == 0:
		return exitDone
	case len(builds) == 1:
		return exitFailed
	default:
		return exitPartly
	}
}

func succeeded(state string) bool {
	return state == string(schema.OutcomeBuilt) || state == string(schema.OutcomeUnchanged)
}

func ended(build api.Build) bool { return !build.Ended.IsZero() }

// watchBuilds hands on what builders say and prints a line for each build that ends, until
// all have.
func (a *app) watchBuilds(ctx context.Context, client *apiclient.Client, ids []string, said func(name string, progress schema.Progress)) (api.BuildWatchOut, error) {
	printed := map[string]bool{}
	return a.followBuilds(ctx, client, ids, said, func(build api.Build) {
		if ended(build) && !printed[build.ID] {
			printed[build.ID] = true
			a.printBuilt(build)
		}
	})
}

// followBuilds asks for news until every build has ended: what builders say goes to said, and
// each build as it stands to now.
func (a *app) followBuilds(ctx context.Context, client *apiclient.Client, ids []string,
	said func(name string, progress schema.Progress), now func(api.Build),
) (api.BuildWatchOut, error) {
	names := map[string]string{}
	var last api.BuildWatchOut
	for {
		var news api.BuildWatchOut
		err := a.patiently(ctx, func() (err error) {
			news, err = api.BuildWatch.Do(ctx, client, api.BuildWatchIn{IDs: ids, Cursor: last.Cursor})
			return err
		})
		if err != nil {
			return last, err
		}
		last = news
		for _, build := range news.Builds {
			names[build.ID] = buildName(build)
		}
		for _, progress := range news.Progress {
			said(names[progress.ID], progress)
		}
		open := 0
		for _, build := range news.Builds {
			if !ended(build) {
				open++
			}
			now(build)
		}
		if open == 0 {
			return last, nil
		}
	}
}

func (a *app) phase(name string, progress schema.Progress) {
	what := string(progress.Phase)
	if progress.Artifact != "" {
		what += " " + progress.Artifact
	}
	fmt.Fprintf(a.stderr, "  %s  %-12s %s\n", progress.At.Local().Format(time.TimeOnly), name, what)
}

func buildName(build api.Build) string {
	switch {
	case build.Module != "":
		return build.Module
	case build.Path != "":
		return build.Path
	default:
		return build.Repository
	}
}

func (a *app) printBuilt(build api.Build) {
	if a.output == "json" {
		return
	}
	line := fmt.Sprintf("%-9s %-14s %s in %s", build.State, buildName(build), orDash(build.Digest), took(build.Started, build.Ended))
	if build.Error != nil {
		line = fmt.Sprintf("%-9s %-14s %s: %s", build.State, buildName(build), build.Error.Reason, firstLine(build.Error.Message))
	}
	fmt.Fprintln(a.stdout, line)
	if build.Moved {
		fmt.Fprintf(a.stdout, "          %-14s of commit %s, newer than %s, which was noticed\n", "", short(build.Commit), short(build.Noticed))
	}
	for _, artifact := range slices.Sorted(maps.Keys(build.Reproducible)) {
		fmt.Fprintf(a.stdout, "          %-14s %s\n", artifact, reproduced(build.Reproducible[artifact]))
	}
	if build.Error != nil && build.Error.Remedy != "" {
		fmt.Fprintln(a.stderr, "hint: "+build.Error.Remedy)
	}
}

// reproduced says what making an artifact twice showed.
func reproduced(r schema.Reproduction) string {
	if r.Same {
		return "the same both times"
	}
	return "differs: " + r.Difference
}
