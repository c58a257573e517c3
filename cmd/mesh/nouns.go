package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

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
				return a.show(out, func() { a.printRepositories(out.Repositories) })
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
	command.AddCommand(add, list, show, remove, refresh)
	return command
}

// repositoryShown is what repo show prints as JSON.
type repositoryShown struct {
	Repository api.Repository     `json:"repository"`
	Modules    []api.ModuleStatus `json:"modules"`
}

func (a *app) showRepository(cmd *cobra.Command, url string) error {
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		list, err := api.RepositoryList.Do(ctx, client, api.None{})
		if err != nil {
			return err
		}
		modules, err := api.ModuleList.Do(ctx, client, api.None{})
		if err != nil {
			return err
		}
		for _, repository := range list.Repositories {
			if repository.URL != url {
				continue
			}
			from := slices.DeleteFunc(modules.Modules, func(m api.ModuleStatus) bool { return m.Repository != url })
			return a.show(repositoryShown{repository, from}, func() {
				a.printRepositories([]api.Repository{repository})
				fmt.Fprintln(a.stdout)
				rows := [][]string{}
				for _, m := range from {
					rows = append(rows, []string{m.Module, orDash(m.Path), m.State, short(m.Tree), moduleNote(m)})
				}
				table(a.stdout, "no modules", []string{"MODULE", "PATH", "STATE", "TREE", "NOTE"}, rows)
			})
		}
		return &api.Error{Code: api.CodeNotFound, Message: "no repository " + url + " is watched", Remedy: "mesh repo ls lists those that are"}
	})
}

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

// maxSecret bounds a given value, in bytes.
const maxSecret = 64 << 10

func (a *app) secretCommand() *cobra.Command {
	command := &cobra.Command{Use: "secret", Short: "Modules' own secrets, never their values"}
	in := api.SecretGiveIn{}
	var file string
	give := &cobra.Command{
		Use: "give MODULE NAME --node N [--file F]", Short: "Give a secret the mesh cannot make; the value comes from standard input or a file", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Module, in.Name = args[0], args[1]
			value, err := a.secretValue(file)
			if err != nil {
				return err
			}
			in.Value = value
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				if _, err := api.SecretGive.Do(ctx, client, in); err != nil {
					return err
				}
				return a.did("secret %s of %s is sealed to %s", in.Name, in.Module, in.Node)
			})
		},
	}
	nodeFlag(give, &in.Node)
	give.Flags().StringVar(&file, "file", "", "read the value from this file")
	list := &cobra.Command{
		Use: "ls", Short: "Every secret with its origin and age", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
				out, err := api.SecretList.Do(ctx, client, api.None{})
				if err != nil {
					return err
				}
				return a.show(out, func() {
					rows := make([][]string, 0, len(out.Secrets))
					for _, s := range out.Secrets {
						usable := "yes"
						if !s.Usable {
							usable = "no, sealed to an older key"
						}
						rows = append(rows, []string{s.Node, s.Module, s.Name, s.Origin, ago(s.Made), usable})
					}
					table(a.stdout, "no secrets", []string{"NODE", "MODULE", "SECRET", "ORIGIN", "MADE", "USABLE"}, rows)
				})
			})
		},
	}
	command.AddCommand(give, list)
	return command
}

func (a *app) secretValue(file string) ([]byte, error) {
	reader := a.stdin
	if file != "" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the value: %w", err)
		}
		defer opened.Close()
		reader = opened
	}
	value, err := io.ReadAll(io.LimitReader(reader, maxSecret+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the value: %w", err)
	case len(value) == 0:
		return nil, usage("the value is empty; give it on standard input or with --file")
	case len(value) > maxSecret:
		return nil, usage("the value is larger than %d KiB", maxSecret>>10)
	}
	return value, nil
}

func documents() string {
	return strings.Join([]string{"module", "manifest", "declaration", "job", "result", "report"}, "|")
}
