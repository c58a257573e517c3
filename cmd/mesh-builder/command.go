package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/listen"
	"github.com/mesh-control/mesh/schema"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// errFailed says that a build's own output has told what went wrong.
var errFailed = errors.New("build failed")

// run is the program. OnPhase is nil but in tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, onPhase func(schema.Phase)) int {
	o := &options{onPhase: onPhase}
	cmd := command(o)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errFailed):
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "mesh-builder:", err)
		return exitUsage
	}
	fmt.Fprintln(stderr, "mesh-builder:", err)
	return exitFailed
}

type usageError struct{ error }

func command(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "mesh-builder",
		Short:         "Take builds from the mesh and publish what they give",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return work(cmd.Context(), o, cmd.ErrOrStderr())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	o.flags(cmd.PersistentFlags())
	cmd.Flags().StringVar(&o.metrics, "listen-metrics", "", "address for /metrics, /healthz and /readyz, host:port")
	cmd.Flags().StringVar(&o.brokerCredential, "broker-credential", "", "file with the broker's URL and fingerprint")
	cmd.AddCommand(buildCommand(o))
	return cmd
}

func buildCommand(o *options) *cobra.Command {
	var ref string
	var asJSON, verify bool
	cmd := &cobra.Command{
		Use:   "build DIR|URL [PATH]",
		Short: "Build one module of a local repository, or of a URL, by hand",
		Long: "Builds what is committed in the git repository at DIR, at PATH within it, and publishes it\n" +
			"when --store-credential names the mesh's registry. Exit codes: 0 built, 1 failed, 2 wrong use.",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.RangeArgs(1, 2)(cmd, args); err != nil {
				return &usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			job := schema.Job{Schema: schema.Version, ID: "by-hand", Repository: args[0], Ref: ref, Verify: verify}
			if info, err := os.Stat(args[0]); err == nil && info.IsDir() {
				if job.Repository, err = filepath.Abs(args[0]); err != nil {
					return err
				}
			}
			if len(args) > 1 {
				job.Path = args[1]
			}
			return byHand(cmd.Context(), o, job, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "make every artifact twice, and say where two of one differ")
	cmd.Flags().StringVar(&ref, "ref", "", "branch, tag or commit; default is the one checked out")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// work serves the queue until the context ends.
func work(ctx context.Context, o *options, stderr io.Writer) error {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	broker, err := readCredential(o.brokerCredential, "--broker-credential")
	if err != nil {
		return err
	}
	config := bus.Config{URL: broker.URL, Fingerprints: strings.Fields(broker.Fingerprint), Name: "builder " + o.name, Log: log}
	// `mesh builder issue` replaces the file, and the account's password with it.
	config.Renewed = func() (string, []string, error) {
		broker, err := readCredential(o.brokerCredential, "--broker-credential")
		return broker.URL, strings.Fields(broker.Fingerprint), err
	}
	if err := config.Check(); err != nil {
		return fmt.Errorf("%s: %w", o.brokerCredential, err)
	}
	if o.storeCredential == "" {
		return &usageError{errors.New("--store-credential is required")}
	}
	b, err := o.builder(ctx, log)
	if err != nil {
		return err
	}
	defer o.close()
	if err := b.Start(ctx); err != nil {
		return err
	}
	defer b.Close()
	conn := bus.Dial(ctx, config)
	defer conn.Close()
	worker := &builder.Worker{Builder: b, Bus: conn, Log: log}
	group, ctx := errgroup.WithContext(ctx)
	if o.metrics != "" {
		metrics := listen.NewMetrics()
		worker.Measure(metrics)
		health := listen.Health(metrics, func() (string, error) { return ready(conn.State()) })
		if err := listen.Listen(ctx, group, log, "metrics", o.metrics, health); err != nil {
			return err
		}
	}
	log.Info("builder takes builds", "name", o.name)
	group.Go(func() error { return worker.Run(ctx) })
	return group.Wait()
}

// ready says whether the broker gives this builder builds. That its process runs proves nothing
// of its credential.
func ready(broker bus.State) (string, error) {
	switch {
	case broker.LastError != "":
		return "", fmt.Errorf("no connection to the broker: %s", broker.LastError)
	case broker.Blocked != "":
		return "", fmt.Errorf("the broker takes no results: %s", broker.Blocked)
	case !broker.Publishing || !broker.Consuming || broker.Waiting > 0:
		return "", errors.New("the broker gives no builds yet")
	}
	return "takes builds", nil
}

// byHand makes one build and prints it as it goes.
func byHand(ctx context.Context, o *options, job schema.Job, asJSON bool, stdout, stderr io.Writer) error {
	o.byHand = true
	b, err := o.builder(ctx, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	defer o.close()
	if err := b.Start(ctx); err != nil {
		return err
	}
	defer b.Close()
	result := b.Build(ctx, job, func(p schema.Progress) {
		if p.Line != "" {
			fmt.Fprintf(stderr, "%-8s %s\n", p.Phase, prefixed(p.Artifact, p.Line))
		}
	})
	if asJSON {
		out := json.NewEncoder(stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(result); err != nil {
			return err
		}
	} else {
		printResult(stdout, result)
	}
	if result.Error != nil {
		return errFailed
	}
	return nil
}

func prefixed(artifact, line string) string {
	if artifact == "" {
		return line
	}
	return artifact + ": " + line
}

func printResult(w io.Writer, r schema.Result) {
	if r.Error != nil {
		fmt.Fprintf(w, "%s: %s: %s\n", r.Outcome, r.Error.Reason, r.Error.Message)
		if r.Error.Remedy != "" {
			fmt.Fprintf(w, "  %s\n", r.Error.Remedy)
		}
		return
	}
	fmt.Fprintf(w, "%s %s from commit %s\n", r.Outcome, r.Module, r.Commit)
	for _, name := range slices.Sorted(maps.Keys(r.Manifest.Artifacts)) {
		built := r.Manifest.Artifacts[name]
		fmt.Fprintf(w, "  %-16s %-9s %s\n", name, built.Kind, built.Digest)
		if twice, ok := r.Reproducible[name]; ok && twice.Same {
			fmt.Fprintf(w, "  %-16s %-9s the same when made twice\n", "", "")
		} else if ok {
			fmt.Fprintf(w, "  %-16s %-9s not reproducible: %s\n", "", "", twice.Difference)
		}
	}
	if r.Digest != "" {
		fmt.Fprintf(w, "manifest %s\n", r.Digest)
	}
}
