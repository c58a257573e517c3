// Command mesh-catalogue watches repositories and records what stands in them. With --serve
// it also serves the repositories of a directory to builders, read-only.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/listen"
	"github.com/mesh-control/mesh/internal/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mesh-catalogue:", err)
		os.Exit(1)
	}
}

type options struct {
	credential, directory, metrics, serveRoot string
	hooks, hooksURL                           string
	serve                                     []string
	poll                                      time.Duration
	memory                                    int64
	maximum                                   int64
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "mesh-catalogue",
		Short:         "Watches the mesh's repositories and records the modules in them",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.credential, "database-credential", "", "file with the credential of the database: a credential's JSON, or a postgres:// URL")
	flags.DurationVar(&o.poll, "poll", time.Minute, "time between two looks at a repository, 1s or more")
	flags.StringVar(&o.metrics, "listen-metrics", "", "address for /metrics, /healthz and /readyz, host:port")
	flags.StringVar(&o.directory, "dir", filepath.Join(os.TempDir(), "mesh-catalogue"), "directory for this catalogue's key, which is made there, and for what is too large for memory")
	flags.Int64Var(&o.memory, "memory-bytes", 32<<20, "largest fetch held in memory")
	flags.Int64Var(&o.maximum, "max-bytes", 4<<30, "largest fetch accepted")
	flags.StringArrayVar(&o.serve, "serve", nil, "address on which repositories are served to builders over HTTP, host:port; may be repeated")
	flags.StringVar(&o.serveRoot, "serve-root", "", "directory whose repositories are served")
	flags.StringVar(&o.hooks, "listen-hooks", "", "address on which the webhooks of forges are taken, host:port")
	flags.StringVar(&o.hooksURL, "hooks-url", "", "URL under which forges reach --listen-hooks, as mesh repo hook shows it; its path is "+catalogue.HooksPath)
	_ = cmd.MarkFlagRequired("database-credential")
	cmd.MarkFlagsRequiredTogether("serve", "serve-root")
	return cmd
}

// run opens the database, brings its schema up to date, and watches until ctx ends. The
// servers answer from the first moment, so that a database that is down can be seen.
func run(ctx context.Context, o options) error {
	if o.poll < time.Second {
		return fmt.Errorf("--poll %s: at least 1s", o.poll)
	}
	hooksURL, err := publicHooks(o)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	database, err := databaseURL(o.credential)
	if err != nil {
		return err
	}
	metrics, health := listen.NewMetrics(), &health{}
	signalled := ctx
	group, ctx := errgroup.WithContext(ctx)
	if o.metrics != "" {
		if err := listen.Listen(ctx, group, log, "metrics", o.metrics, listen.Health(metrics, health.ready)); err != nil {
			return err
		}
	}
	for _, address := range o.serve {
		if err := listen.Listen(ctx, group, log, "repositories", address, served(o.serveRoot, log)); err != nil {
			return err
		}
	}
	if o.hooks != "" {
		if err := listenHooks(ctx, group, log, o.hooks, health); err != nil {
			return err
		}
	}
	key, err := catalogue.LoadKey(filepath.Join(o.directory, "key"))
	if err != nil {
		return err
	}
	group.Go(func() error {
		pool, err := open(ctx, database, log)
		if err != nil {
			return err
		}
		defer pool.Close()
		service, err := catalogue.New(pool, catalogue.Config{
			Poll: o.poll, Key: key, HooksURL: hooksURL, Registry: metrics, Log: log,
			Source: source.Config{Dir: o.directory, MemoryBytes: o.memory, MaxBytes: o.maximum},
		})
		if err != nil {
			return err
		}
		health.service.Store(service)
		return service.Run(ctx)
	})
	if err := group.Wait(); err != nil && signalled.Err() == nil {
		return err
	}
	return nil
}

// publicHooks is what is published of where forges send to.
func publicHooks(o options) (string, error) {
	if o.hooks == "" || o.hooksURL == "" {
		if o.hooksURL != "" {
			return "", errors.New("--hooks-url without --listen-hooks: nothing would take what is sent there")
		}
		if o.hooks != "" {
			return catalogue.HooksPath, nil
		}
		return "", nil
	}
	u, err := url.Parse(o.hooksURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return "", errors.New("--hooks-url: not an http or https URL without a user")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = catalogue.HooksPath
	}
	return u.String(), nil
}

// open waits for the database and migrates it; a server that goes away meanwhile is waited
// for again.
func open(ctx context.Context, database string, log *slog.Logger) (*store.Pool, error) {
	for {
		pool, err := store.WaitOpen(ctx, database)
		if err != nil {
			return nil, err
		}
		err = catalogue.Migrate(ctx, pool)
		if err == nil {
			return pool, nil
		}
		pool.Close()
		if !store.Unreachable(err) || ctx.Err() != nil {
			return nil, err
		}
		log.Warn("migrate; trying again", "error", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
