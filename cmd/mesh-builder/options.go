package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

type options struct {
	brokerCredential string
	storeCredential  string
	work             string
	engine           string
	name             string
	toolchain        string
	toolchainImages  map[string]string
	caBundle         string
	key              string
	goProxy          string
	insecure         []string
	memory           int64

	byHand  bool
	onPhase func(schema.Phase)
	closers []func()
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.storeCredential, "store-credential", "", "file with the registry's URL, certificate and token")
	f.StringVar(&o.work, "work", "", "directory of this builder alone (default: a fresh one for a build by hand)")
	f.StringVar(&o.engine, "engine", "", "container engine, as unix:///run/docker.sock; none refuses images")
	f.StringVar(&o.name, "name", "", "name in results (default: the machine's)")
	f.StringVar(&o.toolchain, "toolchain", "host", "host: the machine's own; container: images named by --toolchain-image")
	f.StringToStringVar(&o.toolchainImages, "toolchain-image", nil, "language=reference of a toolchain image, as go=registry.mesh/carried/…")
	f.StringVar(&o.caBundle, "ca-bundle", "", "file of certificates trusted for git, module proxies and outside registries")
	f.StringVar(&o.key, "key", "", "file with this builder's private key, for repository credentials sealed to it")
	f.StringVar(&o.goProxy, "go-proxy", "", "GOPROXY while dependencies are fetched")
	f.StringSliceVar(&o.insecure, "outside-insecure", nil, "outside registries spoken to without TLS, as 127.0.0.1:5001")
	f.Int64Var(&o.memory, "memory", 0, "bytes an image build or a compiler in a container may use; 0 is no limit")
}

// builder wires the parts in the order the data flows.
func (o *options) builder(log *slog.Logger) (*builder.Builder, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	b := &builder.Builder{
		Name: o.name, Work: o.work, AllowLocal: o.byHand, Memory: o.memory, OnPhase: o.onPhase, Log: log,
	}
	if o.storeCredential != "" {
		client, err := o.registry(log)
		if err != nil {
			return nil, err
		}
		o.closers = append(o.closers, client.Close)
		b.Registry = client
	}
	if o.engine != "" {
		e, err := engine.Open(o.engine, o.name)
		if err != nil {
			return nil, err
		}
		o.closers = append(o.closers, func() { _ = e.Close() })
		b.Engine = e
	}
	if o.key != "" {
		private, err := os.ReadFile(o.key)
		if err != nil {
			return nil, err
		}
		b.Open = func(sealed schema.Sealed) ([]byte, error) { return pki.Open(private, sealed) }
	}
	var err error
	b.Go, err = o.goToolchain(b)
	return b, err
}

func (o *options) close() {
	for _, c := range o.closers {
		c()
	}
}

func (o *options) defaults() error {
	if o.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		o.name = strings.ToLower(host)
	}
	if o.work == "" && o.byHand {
		dir, err := os.MkdirTemp("", "mesh-builder-")
		if err != nil {
			return err
		}
		o.work = dir
		o.closers = append(o.closers, func() { _ = os.RemoveAll(dir) })
	}
	if o.work == "" {
		return &usageError{errors.New("--work is required")}
	}
	if o.caBundle != "" {
		if _, err := os.Stat(o.caBundle); err != nil {
			return err
		}
		// Read by crypto/x509 when the first certificate is checked.
		return os.Setenv("SSL_CERT_FILE", o.caBundle)
	}
	return nil
}

func (o *options) registry(log *slog.Logger) (*registry.Client, error) {
	c, err := readCredential(o.storeCredential, "--store-credential")
	if err != nil {
		return nil, err
	}
	client, err := registry.NewClient(registry.Config{
		URL: c.URL, CA: c.CA, Fingerprint: c.Fingerprint, Token: c.Password, Log: log, Insecure: o.insecure,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.storeCredential, err)
	}
	return client, nil
}

func (o *options) goToolchain(b *builder.Builder) (builder.Toolchain, error) {
	switch o.toolchain {
	case "host":
		program, err := exec.LookPath("go")
		if err != nil {
			return nil, nil //nolint:nilerr // bundles will say that there is no toolchain
		}
		cache := filepath.Join(o.work, "cache", "go")
		if o.byHand {
			if dir, err := os.UserCacheDir(); err == nil {
				cache = filepath.Join(dir, "mesh-builder", "go")
			}
		}
		return builder.HostGo{Program: program, Cache: filepath.Join(cache, "build"), ModCache: filepath.Join(cache, "mod"), Proxy: o.goProxy, CABundle: o.caBundle}, nil
	case "container":
		image := o.toolchainImages["go"]
		if image == "" {
			return nil, nil
		}
		if b.Engine == nil || b.Registry == nil {
			return nil, &usageError{errors.New("--toolchain container needs --engine and --store-credential")}
		}
		return &builder.ContainerGo{
			Engine: b.Engine, Registry: b.Registry, Owner: o.name, Image: image, Work: o.work,
			Proxy: o.goProxy, CABundle: o.caBundle, Memory: o.memory,
		}, nil
	}
	return nil, &usageError{fmt.Errorf("--toolchain %q is neither host nor container", o.toolchain)}
}

// readCredential reads a credential file. No error repeats what is in it.
func readCredential(file, flag string) (schema.Credential, error) {
	var c schema.Credential
	if file == "" {
		return c, &usageError{fmt.Errorf("%s is required", flag)}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if json.Unmarshal(data, &c) != nil || c.URL == "" {
		return c, fmt.Errorf("%s: is not a credential with a url", file)
	}
	return c, nil
}
