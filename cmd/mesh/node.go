package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) nodeCommand() *cobra.Command {
	command := &cobra.Command{Use: "node", Short: "The mesh's machines"}
	list := &cobra.Command{
		Use: "ls", Short: "Every node and its state", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.NodeList.Do(ctx, client, api.None{})
				if err != nil {
					return err
				}
				return a.show(out, func() { a.printNodes(out.Nodes) })
			})
		},
	}
	show := &cobra.Command{
		Use: "show NODE", Short: "A node with its modules and resources", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.NodeShow.Do(ctx, client, api.NodeRef{Node: args[0]})
				if err != nil {
					return err
				}
				return a.show(out, func() { a.printNode(out) })
			})
		},
	}
	label := &cobra.Command{
		Use: "label NODE KEY=VALUE…", Short: "Set labels; an empty value removes one", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			labels, err := pairs("label", args[1:])
			if err != nil {
				return err
			}
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				node, err := api.NodeLabel.Do(ctx, client, api.NodeLabelIn{Node: args[0], Labels: labels})
				if err != nil {
					return err
				}
				return a.show(node, func() { fmt.Fprintf(a.stdout, "%s %v\n", node.Name, node.Labels) })
			})
		},
	}
	forget := &cobra.Command{
		Use: "forget NODE", Short: "Remove a node from the mesh", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				if err := a.confirm("forget " + args[0] + " and everything assigned to it?"); err != nil {
					return err
				}
				if _, err := api.NodeForget.Do(ctx, client, api.NodeRef{Node: args[0]}); err != nil {
					return err
				}
				return a.did("%s is no longer a node of the mesh; what it runs, it runs on", args[0])
			})
		},
	}
	command.AddCommand(list, show, label, forget)
	return command
}

func (a *app) printNode(out api.NodeShowOut) {
	a.printNodes([]api.Node{out.Node})
	fmt.Fprintln(a.stdout)
	rows := make([][]string, 0, len(out.Node.Modules))
	for _, m := range out.Node.Modules {
		rows = append(rows, []string{m.Module, m.State, short(m.Running), short(m.Declared), orDash(m.Blocked)})
	}
	table(a.stdout, "no modules", []string{"MODULE", "STATE", "RUNNING", "DECLARED", "HELD BACK"}, rows)
	fmt.Fprintln(a.stdout)
	rows = make([][]string, 0, len(out.Resources))
	for _, r := range out.Resources {
		rows = append(rows, []string{r.ID, r.Type, r.Phase, strconv.Itoa(r.Restarts), ago(r.Since), orDash(firstLine(r.Message))})
	}
	table(a.stdout, "no report of any resource", []string{"RESOURCE", "TYPE", "PHASE", "RESTARTS", "SINCE", "NOTE"}, rows)
}
