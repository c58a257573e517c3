package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

func (a *app) repoCommand() *cobra.Command {
	command := &cobra.Command{Use: "repo", Short: "The repositories the catalogue watches"}
	in := api.RepositoryAddIn{}
	add := &cobra.Command{
		Use: "add URL [--ref R] [--watch DIR]", Short: "Watch a repository", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.URL = args[0]
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.RepositoryAdd.Do(ctx, client, in)
				if err != nil {
					return err
				}
				return a.show(out, func() { fmt.Fprintf(a.stdout, "%s is watched; mesh repo ls shows what is read\n", out.URL) })
			})
		},
	}
	add.Flags().StringVar(&in.Ref, "ref", "", "branch, tag or full ref (default the remote's HEAD)")
	add.Flags().StringVar(&in.Watch, "watch", "", "the bare repository's directory on the catalogue's machine, to see commits at once")
	list := &cobra.Command{
		Use: "ls", Short: "Every repository and its state", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.RepositoryList.Do(ctx, client, api.None{})
				if err != nil {
					return err
				}
				return a.show(out, func() {
					a.printRepositories(out.Repositories)
					a.printNotices("\nof no watched repository:", out.Notices)
				})
			})
		},
	}
	show := &cobra.Command{
		Use: "show URL", Short: "A repository and its modules", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.showRepository(cmd, args[0]) },
	}
	remove := &cobra.Command{
		Use: "rm URL", Short: "Stop watching; nothing is removed from any node", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				if err := a.confirm("stop watching " + args[0] + "?"); err != nil {
					return err
				}
				if _, err := api.RepositoryRemove.Do(ctx, client, api.RepositoryRef{URL: args[0]}); err != nil {
					return err
				}
				return a.did("%s is no longer watched", args[0])
			})
		},
	}
	refresh := &cobra.Command{
		Use: "refresh URL", Short: "Look at a repository now", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				if _, err := api.RepositoryRefresh.Do(ctx, client, api.RepositoryRef{URL: args[0]}); err != nil {
					return err
				}
				return a.did("%s is looked at; mesh repo ls shows what is read", args[0])
			})
		},
	}
	command.AddCommand(add, list, show, remove, refresh, a.repoCredentialCommand(), a.repoHookCommand(), a.repoSuspendCommand(true), a.repoSuspendCommand(false))
	return command
}

// repositoryShown is what repo show prints as JSON.
type repositoryShown struct {
	Repository api.Repository     `json:"repository"`
	Modules    []api.ModuleStatus `json:"modules"`
}

func (a *app) showRepository(cmd *cobra.Command, url string) error {
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		repository, err := findRepository(ctx, client, url)
		if err != nil {
			return err
		}
		modules, err := api.ModuleList.Do(ctx, client, api.None{})
		if err != nil {
			return err
		}
		from := slices.DeleteFunc(modules.Modules, func(m api.ModuleStatus) bool { return m.Repository != url })
		return a.show(repositoryShown{repository, from}, func() {
			a.printRepositories([]api.Repository{repository})
			if repository.Credential != nil {
				fmt.Fprintf(a.stdout, "read with a %s given %s\n", repository.Credential.Kind, ago(repository.Credential.Given))
			}
			if hook := repository.Hook; hook != nil {
				fmt.Fprintf(a.stdout, "has a webhook, made %s\n", ago(hook.Given))
				a.printNotices("", hook.Notices)
			}
			if repository.Remedy != "" {
				fmt.Fprintln(a.stderr, "hint: "+repository.Remedy)
			}
			fmt.Fprintln(a.stdout)
			rows := [][]string{}
			for _, m := range from {
				rows = append(rows, []string{m.Module, orDash(m.Path), m.State, short(m.Tree), moduleNote(m)})
			}
			table(a.stdout, "no modules", []string{"MODULE", "PATH", "STATE", "TREE", "NOTE"}, rows)
		})
	})
}
