// Command mesh-controller is the mesh's control plane: it answers operators over HTTPS,
// composes and pushes declarations, asks for builds, and keeps what came of them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mesh-controller:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "mesh-controller",
		Short:         "The mesh's control plane",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	initialise := &cobra.Command{Use: "init", Short: "How a mesh begins"}
	initialise.AddCommand(adopt())
	root.AddCommand(serve(), initialise)
	return root
}

func serve() *cobra.Command {
	var file, roles, level string
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Serve until ended by SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var threshold slog.Level
			if err := threshold.UnmarshalText([]byte(level)); err != nil {
				return fmt.Errorf("--log-level: %w", err)
			}
			log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: threshold}))
			config, err := reconcile.Load(file)
			if err != nil {
				return err
			}
			config.Version = version()
			if roles != "" {
				config.Roles = strings.Split(roles, ",")
			}
			return run(cmd.Context(), config, log)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration, JSON")
	cmd.Flags().StringVar(&roles, "roles", "", "controllers, scheduler, or both separated by a comma (default both)")
	cmd.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}

func run(ctx context.Context, config reconcile.Config, log *slog.Logger) error {
	controller, err := reconcile.New(ctx, config, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer controller.Close()
	return controller.Serve(ctx)
}

// adopt reads a mesh's beginning as JSON and prints the first declaration.
func adopt() *cobra.Command {
	var file, state string
	cmd := &cobra.Command{
		Use:   "adopt --config FILE --state FILE",
		Short: "Record a mesh's beginning and print the first declaration",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Minute)
			defer cancel()
			config, err := reconcile.Load(file)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(state)
			if err != nil {
				return err
			}
			return adoptState(ctx, cmd.OutOrStdout(), config, data)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration, JSON")
	cmd.Flags().StringVar(&state, "state", "", "what genesis hands over, JSON")
	_ = cmd.MarkFlagRequired("config")
	_ = cmd.MarkFlagRequired("state")
	return cmd
}

func adoptState(ctx context.Context, out io.Writer, config reconcile.Config, data []byte) error {
	var in reconcile.AdoptInput
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	in.Config = config
	pool, err := store.WaitOpen(ctx, config.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	adopted, err := reconcile.Adopt(ctx, pool, in)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(out).Encode(adopted); err != nil {
		return errors.Join(errors.New("print the first declaration"), err)
	}
	return nil
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
