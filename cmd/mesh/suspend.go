package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) repoSuspendCommand(suspended bool) *cobra.Command {
	command := &cobra.Command{
		Use: "suspend URL", Short: "Stop looking at a repository; its modules stay as they are", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				if _, err := api.RepositorySuspend.Do(ctx, client, api.RepositorySuspendIn{URL: args[0], Suspended: suspended}); err != nil {
					return err
				}
				if suspended {
					return a.did("%s is suspended: it is not looked at, and building what is behind leaves its modules alone", args[0])
				}
				return a.did("%s is looked at again", args[0])
			})
		},
	}
	if !suspended {
		command.Use, command.Short = "resume URL", "Look at a suspended repository again"
	}
	return command
}

func (a *app) moduleSuspendCommand(suspended bool) *cobra.Command {
	command := &cobra.Command{
		Use: "suspend MODULE", Short: "Leave a module out of mesh build --behind; naming it still builds it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				if _, err := api.ModuleSuspend.Do(ctx, client, api.ModuleSuspendIn{Module: args[0], Suspended: suspended}); err != nil {
					return err
				}
				if suspended {
					return a.did("%s is suspended: building what is behind leaves it alone", args[0])
				}
				return a.did("%s is built again when it is behind", args[0])
			})
		},
	}
	if !suspended {
		command.Use, command.Short = "resume MODULE", "Build a suspended module again when it is behind"
	}
	return command
}
