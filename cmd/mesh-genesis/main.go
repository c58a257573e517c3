// Command mesh-genesis takes a bare machine to a running mesh, and takes it away again.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/genesis"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mesh-genesis:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "mesh-genesis", Short: "From a bare machine to a mesh, and back", SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(installCommand(), verifyCommand(), uninstallCommand(), sourceCommand())
	return root
}

func installCommand() *cobra.Command {
	in := &genesis.Installer{Out: os.Stdout}
	var foundation string
	cmd := &cobra.Command{
		Use: "install --dir D --foundation processes", Short: "Raise a mesh; safe to run again after any end", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if foundation != genesis.FoundationProcesses {
				return fmt.Errorf("--foundation %s is not known; %s is", foundation, genesis.FoundationProcesses)
			}
			return in.Install(cmd.Context())
		},
	}
	common(cmd, in)
	cmd.Flags().StringVar(&foundation, "foundation", genesis.FoundationProcesses, "what PostgreSQL, broker and registry run as")
	return cmd
}

func common(cmd *cobra.Command, in *genesis.Installer) {
	flags := cmd.Flags()
	flags.StringVar(&in.Dir, "dir", "", "directory of everything the installation makes")
	flags.StringVar(&in.Mesh, "mesh", "mesh", "the mesh's name")
	flags.StringVar(&in.Node, "node", "n1", "this machine's name in the mesh")
	flags.StringVar(&in.Address, "address", "", "IP address of this machine for containers and other machines (default the engine's bridge)")
	flags.StringVar(&in.Engine, "engine", "unix:///var/run/docker.sock", "the container engine's socket")
	flags.StringVar(&in.Source, "source", ".", "checkout of the mesh, which its own modules are built from")
	flags.StringVar(&in.Programs, "programs", "bin", "directory of the mesh's programs")
	flags.StringVar(&in.Carried, "carried", "", "cache of carried images (default in --dir)")
	_ = cmd.MarkFlagRequired("dir")
}

func verifyCommand() *cobra.Command {
	in := &genesis.Installer{Out: os.Stdout}
	cmd := &cobra.Command{
		Use: "verify --dir D", Short: "Prove that what runs is what the mesh's own registry holds", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return in.Verify(cmd.Context()) },
	}
	common(cmd, in)
	return cmd
}

func uninstallCommand() *cobra.Command {
	var dir string
	var yes bool
	cmd := &cobra.Command{
		Use: "uninstall --dir D --yes", Short: "End everything an installation made, and remove it with its data", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return errors.New("uninstall removes the mesh with its data; say so with --yes")
			}
			return genesis.Uninstall(cmd.Context(), dir, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the installation")
	cmd.Flags().BoolVar(&yes, "yes", false, "yes, with its data")
	_ = cmd.MarkFlagRequired("dir")
	return cmd
}

func sourceCommand() *cobra.Command {
	var checkout, out string
	cmd := &cobra.Command{
		Use: "source --out BARE", Short: "Assemble the repository the mesh's own modules are built from", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			commit, err := genesis.AssembleSource(cmd.Context(), checkout, out)
			if err != nil {
				return err
			}
			fmt.Println(commit)
			return nil
		},
	}
	cmd.Flags().StringVar(&checkout, "source", ".", "checkout of the mesh")
	cmd.Flags().StringVar(&out, "out", "", "bare repository to commit to; made if missing")
	_ = cmd.MarkFlagRequired("out")
	return cmd
}
