package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/catalogue/notice"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

// hookMade is what repo hook prints as JSON: the only time that a secret is shown.
type hookMade struct {
	api.RepositoryHookOut
	Secret string `json:"secret,omitempty"` // "" when it was given
}

func (a *app) repoHookCommand() *cobra.Command {
	var rotate, remove bool
	var file string
	command := &cobra.Command{
		Use:   "hook URL [--rotate] [--secret-file F] [--remove]",
		Short: "Make a webhook for a repository: where its forge sends, and the secret, shown once",
		Long: "A push is then seen at once, and not when the repository is next looked at. The secret is sealed to\n" +
			"the catalogue and shown no second time. docs/webhooks.md says where each forge wants it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if remove {
				if rotate || file != "" {
					return usage("--remove goes with no other flag")
				}
				return a.removeHook(cmd, args[0])
			}
			return a.makeHook(cmd, args[0], file, rotate)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&rotate, "rotate", false, "replace the secret of a hook that is there; the old one is refused from then on")
	flags.StringVar(&file, "secret-file", "", "file with the secret, say one that several repositories of an organization share; - reads standard input")
	flags.BoolVar(&remove, "remove", false, "take no more notices for the repository")
	return command
}

func (a *app) makeHook(cmd *cobra.Command, url, file string, rotate bool) error {
	made := hookMade{Secret: notice.NewSecret()}
	in := api.RepositoryHookIn{URL: url, Secret: made.Secret, Rotate: rotate}
	if file != "" {
		given, err := a.secretLine(file)
		if err != nil {
			return err
		}
		in.Secret, made.Secret = given, ""
	}
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		var err error
		if made.RepositoryHookOut, err = api.RepositoryHook.Do(ctx, client, in); err != nil {
			return err
		}
		if len(made.Addresses) == 0 {
			fmt.Fprintln(a.stderr, "hint: no catalogue takes notices yet; start mesh-catalogue with --listen-hooks, or set hooks of the module catalogue")
		}
		return a.show(made, func() {
			for _, address := range made.Addresses {
				if strings.HasPrefix(address, "/") {
					fmt.Fprintf(a.stdout, "path     %s of the catalogue's --listen-hooks address\n", address)
					continue
				}
				fmt.Fprintf(a.stdout, "address  %s\n", address)
			}
			if made.Secret != "" {
				fmt.Fprintf(a.stdout, "secret   %s\n", made.Secret)
				fmt.Fprintln(a.stderr, "the secret is shown only now; docs/webhooks.md says where the forge wants it")
			}
		})
	})
}

func (a *app) removeHook(cmd *cobra.Command, url string) error {
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		if err := a.confirm("take no more notices for " + url + "?"); err != nil {
			return err
		}
		if _, err := api.RepositoryHookRemove.Do(ctx, client, api.RepositoryRef{URL: url}); err != nil {
			return err
		}
		return a.did("%s has no hook any more", url)
	})
}

// printNotices shows what came by webhooks.
func (a *app) printNotices(heading string, notices []api.NoticeCount) {
	if len(notices) == 0 {
		return
	}
	fmt.Fprintln(a.stdout, heading)
	rows := make([][]string, 0, len(notices))
	for _, n := range notices {
		rows = append(rows, []string{n.Outcome, n.Forge, fmt.Sprint(n.Count), ago(n.Last), orDash(n.Subject)})
	}
	table(a.stdout, "", []string{"NOTICES", "FORGE", "COUNT", "LAST", "OF"}, rows)
}
