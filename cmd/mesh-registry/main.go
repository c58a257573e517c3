// Command mesh-registry is the embedded registry as a program of its own, supervised by the
// host, for a mesh on one machine that runs no registry as a container.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/registry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mesh-registry:", err)
		os.Exit(1)
	}
}

type options struct {
	dir, certificate, key, public string
	listen                        []string
	verbose                       bool
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "mesh-registry",
		Short:         "The mesh's registry on one machine: OCI over TLS, on disk, with scoped tokens",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.dir, "dir", "", "directory of the store")
	flags.StringVar(&o.certificate, "certificate", "", "file with the server's certificate, PEM")
	flags.StringVar(&o.key, "key", "", "file with the certificate's key, PEM")
	flags.StringVar(&o.public, "token-key", "", "file with the public key that tokens are checked with, PEM (PKIX, Ed25519)")
	flags.StringArrayVar(&o.listen, "listen", nil, "address to listen on, host:port; may be repeated")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "log refused requests too")
	for _, name := range []string{"dir", "certificate", "key", "token-key", "listen"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

func run(ctx context.Context, o options) error {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	certificate, err := os.ReadFile(o.certificate)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(o.key)
	if err != nil {
		return err
	}
	public, err := readPublic(o.public)
	if err != nil {
		return err
	}
	server, err := registry.NewServer(registry.ServerConfig{
		Dir: o.dir, Certificate: certificate, Key: key, Public: public, Listen: o.listen, Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("registry listens", "addresses", server.Addresses(), "dir", o.dir)
	return server.Serve(ctx)
}

func readPublic(file string) (ed25519.PublicKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s: not PEM", file)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	public, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%s: not an Ed25519 key", file)
	}
	return public, nil
}
