package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

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
		return nil, usage("the value is empty; give it on standard input or in a file")
	case len(value) > maxSecret:
		return nil, usage("the value is larger than %d KiB", maxSecret>>10)
	}
	return value, nil
}
