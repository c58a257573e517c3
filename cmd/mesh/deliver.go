package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) planCommand() *cobra.Command {
	var exitCode bool
	command := &cobra.Command{
		Use: "plan [NODE…]", Short: "What a push would change (default: on every node that is behind)",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				plan, err := api.DeliveryPlan.Do(ctx, client, api.PlanIn{Nodes: args, Behind: len(args) == 0})
				if err != nil {
					return err
				}
				if err := a.show(plan, func() { a.printPlan(plan) }); err != nil {
					return err
				}
				if exitCode && wouldChange(plan, len(args) > 0) {
					return said(exitBehind)
				}
				return nil
			})
		},
	}
	command.Flags().BoolVar(&exitCode, "exit-code", false, "exit 3 when anything would change")
	return command
}

// wouldChange says whether a plan has something in it. One of nodes that were named shows
// those as well that are what they should be.
func wouldChange(plan api.PlanOut, named bool) bool {
	for _, node := range plan.Nodes {
		if !named || len(node.Changes)+len(node.Blocked) > 0 {
			return true
		}
	}
	return false
}

var marks = map[string]string{"create": "+", "update": "~", "recreate": "±", "remove": "-"}

func (a *app) printPlan(plan api.PlanOut) {
	if len(plan.Nodes) == 0 {
		fmt.Fprintln(a.stdout, "nothing would change")
		return
	}
	for _, node := range plan.Nodes {
		fmt.Fprintln(a.stdout, planTitle(node))
		for _, change := range node.Changes {
			fmt.Fprintf(a.stdout, "  %s %-9s %-9s %s  %s\n", marks[change.Action], change.Action, change.Type, change.Resource, shortDigests(change.Detail))
		}
		a.printBlocked(node.Blocked)
	}
}

// printSizes says how much a push changes, to somebody who has said yes to it already.
func (a *app) printSizes(plan api.PlanOut) {
	for _, node := range plan.Nodes {
		fmt.Fprintln(a.stdout, planTitle(node))
		a.printBlocked(node.Blocked)
	}
}

func planTitle(node api.NodePlan) string {
	return fmt.Sprintf("%s (%s): %s", node.Node, short(node.Hash), count(len(node.Changes), "change"))
}

var digests = regexp.MustCompile(`sha256:([0-9a-f]{12})[0-9a-f]{52}`)

// shortDigests makes a line with digests fit; -o json has them whole.
func shortDigests(text string) string { return digests.ReplaceAllString(text, "sha256:$1") }

func (a *app) printBlocked(blocked []api.Blocked) {
	for _, b := range blocked {
		fmt.Fprintf(a.stdout, "  ! %s is held back: %s\n", b.Module, b.Message)
		if b.Remedy != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", b.Remedy)
		}
	}
}

func (a *app) pushCommand() *cobra.Command {
	var behind bool
	command := &cobra.Command{
		Use:   "push --behind | push NODE…",
		Short: "Send nodes the declaration that follows from their assignments",
		Long:  "Send nodes the declaration that follows from their assignments. The plan is shown first,\nand exactly that plan is pushed.\n\n" + exitHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case behind && len(args) > 0:
				return usage("--behind and nodes by name are different requests; give one")
			case !behind && len(args) == 0:
				return usage("say where to push: --behind, or nodes by name")
			}
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				return a.push(ctx, client, api.PlanIn{Nodes: args, Behind: behind})
			})
		},
	}
	command.Flags().BoolVar(&behind, "behind", false, "push to every node that is behind")
	return command
}

func (a *app) push(ctx context.Context, client *apiclient.Client, in api.PlanIn) error {
	plan, err := api.DeliveryPlan.Do(ctx, client, in)
	if err != nil {
		return err
	}
	if len(plan.Nodes) == 0 {
		return a.show(api.PushOut{}, func() { fmt.Fprintln(a.stdout, "nothing is behind") })
	}
	switch {
	case a.output == "json":
	case a.yes:
		a.printSizes(plan)
	default:
		a.printPlan(plan)
	}
	if err := a.confirm("push this?"); err != nil {
		return err
	}
	hashes := map[string]string{}
	for _, node := range plan.Nodes {
		hashes[node.Node] = node.Hash
	}
	pushed, err := api.DeliveryPush.Do(ctx, client, api.PushIn{Plans: hashes})
	if err != nil {
		return err
	}
	states, err := a.watchPush(ctx, client, pushed.Nodes)
	if errors.Is(err, context.DeadlineExceeded) {
		a.complain("timed out waiting for "+unsettled(states)+"; a host that is away takes what was pushed when it is back", "mesh node ls shows which hosts have")
	} else if err != nil {
		return err
	}
	if showErr := a.show(api.PushOut{Nodes: states}, func() { a.printPushed(states) }); showErr != nil {
		return showErr
	}
	return said(pushExit(states, plan))
}

// watchPush waits for every pushed node to settle, and says what changes on the way.
func (a *app) watchPush(ctx context.Context, client *apiclient.Client, nodes []api.NodePush) ([]api.NodePush, error) {
	states := map[string]api.NodePush{}
	generations := map[string]int64{}
	for _, node := range nodes {
		states[node.Node] = node
		if node.Generation > 0 {
			generations[node.Node] = node.Generation
			fmt.Fprintf(a.stderr, "  %s: generation %d pushed\n", node.Node, node.Generation)
		}
	}
	collect := func() []api.NodePush {
		all := make([]api.NodePush, len(nodes))
		for i, node := range nodes {
			all[i] = states[node.Node]
		}
		return all
	}
	for len(generations) > 0 {
		var watched api.DeliveryWatchOut
		err := a.patiently(ctx, func() (err error) {
			watched, err = api.DeliveryWatch.Do(ctx, client, api.DeliveryWatchIn{Generations: generations})
			return err
		})
		if err != nil {
			return collect(), err
		}
		for _, node := range watched.Nodes {
			if node.State == "waiting" && node.Message != states[node.Node].Message {
				fmt.Fprintf(a.stderr, "  %s: %s\n", node.Node, firstLine(node.Message))
			}
			node.Blocked = states[node.Node].Blocked
			states[node.Node] = node
		}
		if watched.Done {
			break
		}
	}
	return collect(), nil
}

// unsettled names the nodes of which it is not known yet what becomes of the push.
func unsettled(nodes []api.NodePush) string {
	var names []string
	for _, node := range nodes {
		if node.State == "pushed" || node.State == "waiting" {
			names = append(names, node.Node)
		}
	}
	return strings.Join(names, ", ")
}

func (a *app) printPushed(nodes []api.NodePush) {
	rows := make([][]string, 0, len(nodes))
	for _, n := range nodes {
		rows = append(rows, []string{n.Node, strconv.FormatInt(n.Generation, 10), n.State, orDash(firstLine(n.Message))})
	}
	table(a.stdout, "nothing was pushed", []string{"NODE", "GENERATION", "STATE", "NOTE"}, rows)
	for _, n := range nodes {
		a.printBlocked(n.Blocked)
	}
}

func pushExit(nodes []api.NodePush, plan api.PlanOut) int {
	for _, node := range nodes {
		if node.State != "applied" {
			return exitPartly
		}
	}
	for _, node := range plan.Nodes {
		if len(node.Blocked) > 0 {
			return exitPartly
		}
	}
	return exitDone
}

func (a *app) assignCommand() *cobra.Command {
	in := api.AssignIn{}
	var settings, bindings []string
	command := &cobra.Command{
		Use: "assign MODULE --node N [--set k=v] [--bind provision=module@node]", Short: "Put a module on a node; a push makes it so",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Module = args[0]
			var err error
			if in.Settings, err = pairs("--set", settings); err != nil {
				return err
			}
			if in.Bindings, err = pairs("--bind", bindings); err != nil {
				return err
			}
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.AssignmentAdd.Do(ctx, client, in)
				if err != nil {
					return err
				}
				return a.show(out, func() {
					fmt.Fprintf(a.stdout, "%s is assigned to %s; mesh plan shows what a push would change\n", in.Module, in.Node)
					for _, note := range out.Notes {
						fmt.Fprintln(a.stdout, "  "+note)
					}
				})
			})
		},
	}
	nodeFlag(command, &in.Node)
	command.Flags().StringArrayVar(&settings, "set", nil, "a setting, key=value")
	command.Flags().StringArrayVar(&bindings, "bind", nil, "which provider to use, provision=module@node")
	return command
}

func nodeFlag(command *cobra.Command, node *string) {
	command.Flags().StringVar(node, "node", "", "the node (required)")
	check := command.Args
	command.Args = func(cmd *cobra.Command, args []string) error {
		if *node == "" {
			return errors.New("--node is missing")
		}
		return check(cmd, args)
	}
}

func pairs(flag string, texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	values := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usage("%s %s: expected key=value", flag, text)
		}
		values[key] = value
	}
	return values, nil
}

func (a *app) unassignCommand() *cobra.Command {
	in := api.UnassignIn{}
	command := &cobra.Command{
		Use: "unassign MODULE --node N", Short: "Take a module off a node; a push makes it so", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Module = args[0]
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				if err := a.confirm(fmt.Sprintf("take %s off %s at the next push?", in.Module, in.Node)); err != nil {
					return err
				}
				if _, err := api.AssignmentRemove.Do(ctx, client, in); err != nil {
					return err
				}
				return a.did("%s is no longer assigned to %s; mesh plan shows what a push would remove", in.Module, in.Node)
			})
		},
	}
	nodeFlag(command, &in.Node)
	return command
}
