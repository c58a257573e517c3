package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "The mesh at a glance", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				status, err := api.SystemStatus.Do(ctx, client, api.None{})
				if err != nil {
					return err
				}
				return a.show(status, func() { a.printStatus(status) })
			})
		},
	}
}

func (a *app) printStatus(status api.Status) {
	fmt.Fprintf(a.stdout, "mesh %s, version %s, %d in the build queue\n\n", status.Mesh, status.Version, status.Queue)
	a.warnOfCatalogue(status.Catalogue)
	a.printNodes(status.Nodes)
	fmt.Fprintln(a.stdout)
	rows := make([][]string, 0, len(status.Modules))
	for _, m := range status.Modules {
		rows = append(rows, []string{m.Module, m.State, short(m.Digest), short(m.BuiltFrom), orDash(strings.Join(m.Nodes, ",")), moduleNote(m)})
	}
	table(a.stdout, "no modules", []string{"MODULE", "STATE", "MANIFEST", "COMMIT", "NODES", "NOTE"}, rows)
	fmt.Fprintln(a.stdout)
	a.printRepositories(status.Repositories)
	a.printNotices("\nnotices of no watched repository:", status.Notices)
	fmt.Fprintln(a.stdout)
	a.printBuilders(status.Builders)
}

func moduleNote(m api.ModuleStatus) string {
	if m.Error != "" {
		return firstLine(m.Error)
	}
	if len(m.Reasons) == 0 {
		return orDash(m.Suspended)
	}
	return reasons(m.Reasons)
}

func (a *app) printNodes(nodes []api.Node) {
	rows := make([][]string, 0, len(nodes))
	for _, n := range nodes {
		note := n.Cause
		if note == "" {
			note = reasons(n.Reasons)
		}
		rows = append(rows, []string{n.Name, n.Address, n.State, strconv.FormatInt(n.Applied, 10), strconv.FormatInt(n.Pushed, 10),
			strconv.Itoa(len(n.Modules)), ago(n.LastReport), firstLine(note)})
	}
	table(a.stdout, "no nodes", []string{"NODE", "ADDRESS", "STATE", "APPLIED", "PUSHED", "MODULES", "HEARD", "NOTE"}, rows)
}

func (a *app) printRepositories(repositories []api.Repository) {
	rows := make([][]string, 0, len(repositories))
	for _, r := range repositories {
		ref := r.Ref
		if ref == "" {
			ref = "HEAD"
		}
		rows = append(rows, []string{r.URL, ref, r.State, short(r.Commit), strconv.Itoa(r.Modules), ago(r.LastSuccess), orDash(firstLine(r.Message))})
	}
	table(a.stdout, "no repositories; add one with mesh repo add URL",
		[]string{"REPOSITORY", "REF", "STATE", "COMMIT", "MODULES", "READ", "NOTE"}, rows)
}

func (a *app) printBuilders(builders []api.Builder) {
	rows := make([][]string, 0, len(builders))
	for _, b := range builders {
		state := "not connected"
		if b.Connected {
			state = "taking work"
		}
		rows = append(rows, []string{b.Node, b.Account, state, ago(b.LastBuild)})
	}
	table(a.stdout, "no builders; make one with mesh builder issue --node N and mesh assign builder --node N",
		[]string{"BUILDER ON", "ACCOUNT", "STATE", "LAST BUILD"}, rows)
}

func (a *app) behindCommand() *cobra.Command {
	var exitCode bool
	command := &cobra.Command{
		Use: "behind", Short: "Which modules and nodes are behind, and why", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				behind, err := api.ModuleBehind.Do(ctx, client, api.None{})
				if err != nil {
					return err
				}
				if err := a.show(behind, func() { a.printBehind(behind) }); err != nil {
					return err
				}
				switch {
				case exitCode && len(behind.Modules)+len(behind.Nodes) > 0:
					return said(exitBehind)
				case exitCode && behind.Catalogue.State != api.CatalogueOK:
					return said(exitBlocked)
				}
				return nil
			})
		},
	}
	command.Flags().BoolVar(&exitCode, "exit-code", false, "exit 3 when anything is behind, 5 when nobody looks at the repositories")
	return command
}

func (a *app) printBehind(behind api.BehindOut) {
	defer a.printBroken(behind.Broken)
	a.warnOfCatalogue(behind.Catalogue)
	for _, r := range behind.Unread {
		fmt.Fprintf(a.stderr, "%s is %s, last read %s: %s\n", r.URL, r.State, ago(r.LastSuccess), orDash(firstLine(r.Message)))
	}
	if len(behind.Modules)+len(behind.Nodes) == 0 {
		if behind.Catalogue.State == api.CatalogueOK {
			fmt.Fprintln(a.stdout, "nothing is behind")
		} else {
			fmt.Fprintln(a.stdout, "nothing is known to be behind")
		}
		return
	}
	rows := make([][]string, 0, len(behind.Modules))
	for _, m := range behind.Modules {
		rows = append(rows, []string{m.Module, short(m.Commit), short(m.BuiltFrom), reasons(m.Reasons)})
	}
	table(a.stdout, "no module is behind", []string{"MODULE", "SOURCE", "BUILT FROM", "WHY"}, rows)
	fmt.Fprintln(a.stdout)
	rows = make([][]string, 0, len(behind.Nodes))
	for _, n := range behind.Nodes {
		rows = append(rows, []string{n.Node, reasons(n.Reasons)})
	}
	table(a.stdout, "no node is behind", []string{"NODE", "WHY"}, rows)
}

// warnOfCatalogue says that nobody looks at the repositories, where that is so.
func (a *app) warnOfCatalogue(c api.Catalogue) {
	if c.State != api.CatalogueOK {
		fmt.Fprintf(a.stderr, "catalogue %s: %s\n", c.State, c.Message)
	}
}

// printBroken names what cannot be behind, because its source cannot be built as it stands.
func (a *app) printBroken(broken []api.ModuleStatus) {
	for _, m := range broken {
		fmt.Fprintf(a.stderr, "%s is %s: %s\n", m.Module, m.State, firstLine(m.Error))
	}
}

func (a *app) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why MODULE [NODE]", Short: "The facts that make a module what it is, and what comes next", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.WhyIn{Module: args[0]}
			if len(args) == 2 {
				in.Node = args[1]
			}
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				why, err := api.ModuleWhy.Do(ctx, client, in)
				if err != nil {
					return err
				}
				return a.show(why, func() {
					rows := make([][]string, 0, len(why.Facts))
					for _, fact := range why.Facts {
						mark := "ok"
						if !fact.OK {
							mark = "no"
						}
						when := "-"
						if !fact.At.IsZero() {
							when = ago(fact.At)
						}
						rows = append(rows, []string{fact.Fact, mark, when, shortDigests(fact.Message)})
					}
					table(a.stdout, "nothing is known", []string{"FACT", "", "WHEN", "WHAT"}, rows)
					if why.Next != "" {
						fmt.Fprintln(a.stdout, "\nnext: "+why.Next)
					}
				})
			})
		},
	}
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "What every part of the control plane finds wrong with itself", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				check, err := api.SystemSelfCheck.Do(ctx, client, api.None{})
				if err != nil {
					return err
				}
				err = a.show(check, func() {
					rows := make([][]string, 0, len(check.Findings))
					for _, f := range check.Findings {
						rows = append(rows, []string{f.Severity, f.Check, f.Message, orDash(f.Fix)})
					}
					table(a.stdout, "nothing found", []string{"SEVERITY", "CHECK", "FINDING", "FIX"}, rows)
				})
				if err == nil && !check.OK {
					return said(exitFailed)
				}
				return err
			})
		},
	}
}

// versionWait bounds how long `mesh version` waits for a controller.
const versionWait = 5 * time.Second

// versions is what version prints as JSON.
type versions struct {
	Program    string           `json:"program"`
	Controller *api.VersionInfo `json:"controller,omitempty"` // where one is known and answers
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The version of this program, and of the controller if one is known", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer := versions{Program: version}
			var err error
			if client, noContext := a.client(); noContext == nil { // else there is no controller to ask
				defer client.Close()
				ctx, cancel := context.WithTimeout(cmd.Context(), min(a.timeout, versionWait))
				defer cancel()
				var info api.VersionInfo
				if info, err = api.SystemVersion.Do(ctx, client, api.None{}); err == nil {
					answer.Controller = &info
				}
			}
			return errors.Join(a.show(answer, func() {
				fmt.Fprintln(a.stdout, "mesh "+answer.Program)
				if answer.Controller != nil {
					fmt.Fprintf(a.stdout, "controller %s of mesh %s\n", answer.Controller.Version, answer.Controller.Mesh)
				}
			}), err)
		},
	}
}
