package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) builderCommand() *cobra.Command {
	command := &cobra.Command{Use: "builder", Short: "The nodes that build"}
	in := api.NodeRef{}
	issue := &cobra.Command{
		Use: "issue --node N", Short: "Make a builder's broker account and seal its credential to the node", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.BuilderIssue.Do(ctx, client, in)
				if err != nil {
					return err
				}
				return a.show(out, func() {
					fmt.Fprintf(a.stdout, "account %s is made and its credential sealed to %s; nothing secret is shown\n", out.Account, out.Node)
				})
			})
		},
	}
	nodeFlag(issue, &in.Node)
	list := &cobra.Command{
		Use: "ls", Short: "Every builder and whether it takes work", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.BuilderList.Do(ctx, client, api.None{})
				if err != nil {
					return err
				}
				return a.show(out, func() { a.printBuilders(out.Builders) })
			})
		},
	}
	command.AddCommand(issue, list)
	return command
}
