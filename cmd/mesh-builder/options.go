package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

type options struct {
	brokerCredential string
	storeCredential  string
	metrics          string
	work             string
	engine           string
	name             string
	toolchain        string
	toolchainImages  map[string]string
	caBundle         string
	key              string
	goProxy          string
	registries       map[string]string
	insecure         []string
	limits           engine.Limits
	minFree          int64

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
	f.StringToStringVar(&o.toolchainImages, "toolchain-image", nil, "language=reference of a toolchain image; languages are "+strings.Join(toolchain.Languages(), ", "))
	f.StringVar(&o.caBundle, "ca-bundle", "", "file of certificates trusted for git, module proxies and outside registries")
	f.StringVar(&o.key, "key", "", "file with this builder's private key: repository credentials are sealed to it, and provenance is signed with it")
	f.StringVar(&o.goProxy, "go-proxy", "", "GOPROXY while dependencies are fetched")
	f.StringToStringVar(&o.registries, "package-registry", nil, "language=where its packages are fetched from, as node=https://…; go has --go-proxy")
	f.StringSliceVar(&o.insecure, "outside-insecure", nil, "outside registries spoken to without TLS, as 127.0.0.1:5001")
	f.Int64Var(&o.limits.Memory, "memory", 0, "bytes of memory an image build or a compiler in a container may use; 0 is three quarters of the machine's, -1 no limit")
	f.Float64Var(&o.limits.CPUs, "cpus", 0, "processors they may use; 0 is no limit")
	f.Int64Var(&o.limits.Processes, "processes", 4096, "processes one step of them may have; 0 is no limit")
	f.Int64Var(&o.minFree, "min-free", builder.DefaultMinFree, "bytes that stay free on the disks a build writes to")
}

// builder wires the parts in the order the data flows.
func (o *options) builder(ctx context.Context, log *slog.Logger) (*builder.Builder, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	b := &builder.Builder{
		Name: o.name, Work: o.work, AllowLocal: o.byHand, Limits: o.limits, MinFree: o.minFree, OnPhase: o.onPhase, Log: log,
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
		if _, err := os.Stat(o.key); err != nil {
			return nil, err
		}
		b.Open, b.SigningKey = o.openCredential, o.signingKey
	}
	var err error
	b.Toolchains, err = o.toolchains(ctx, b, log)
	return b, err
}

// openCredential opens a repository's credential with the key in the file as it is now: a
// builder that is issued again gets another.
func (o *options) openCredential(url string, sealed schema.Sealed) ([]byte, error) {
	private, err := os.ReadFile(o.key)
	if err != nil {
		return nil, err
	}
	return pki.OpenRepository(private, pki.RepositoryCredential, url, sealed)
}

// signingKey is derived from the key in the file as it is now.
func (o *options) signingKey() (ed25519.PrivateKey, error) {
	private, err := os.ReadFile(o.key)
	if err != nil {
		return nil, err
	}
	return pki.BuilderSigningKey(private)
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
	o.limits.Memory = o.memory()
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

// memory is the limit of a machine's memory: a build that takes all of it takes it from others.
func (o *options) memory() int64 {
	var machine syscall.Sysinfo_t
	if o.limits.Memory != 0 || syscall.Sysinfo(&machine) != nil {
		return max(o.limits.Memory, 0)
	}
	return int64(machine.Totalram) * int64(machine.Unit) / 4 * 3
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

// toolchains gives this builder's, by language. One that is not there is missing from the map,
// and bundles of its language will say so.
func (o *options) toolchains(ctx context.Context, b *builder.Builder, log *slog.Logger) (map[string]toolchain.Toolchain, error) {
	found := map[string]toolchain.Toolchain{}
	switch o.toolchain {
	case "host":
		for _, language := range toolchain.Languages() {
			program, err := toolchain.Find(ctx, language)
			if err != nil { // the others serve all the same
				if !errors.Is(err, toolchain.ErrNotInstalled) {
					log.Warn("toolchain cannot be used", "language", language, "error", err)
				}
				continue
			}
			found[language] = toolchain.Host{
				Language: language, Program: program, Caches: o.caches(language), Proxy: o.proxy(language), CABundle: o.caBundle, Trusted: o.byHand,
			}
		}
		return found, nil
	case "container":
		for language, image := range o.toolchainImages {
			if image == "" {
				continue
			}
			if !slices.Contains(toolchain.Languages(), language) {
				return nil, &usageError{fmt.Errorf("--toolchain-image: no language %q; there are %s", language, strings.Join(toolchain.Languages(), ", "))}
			}
			if b.Engine == nil || b.Registry == nil {
				return nil, &usageError{errors.New("--toolchain container needs --engine and --store-credential")}
			}
			found[language] = &toolchain.Container{
				Language: language, Engine: b.Engine, Registry: b.Registry, Owner: o.name, Image: image, Work: o.work,
				Proxy: o.proxy(language), CABundle: o.caBundle, Limits: o.limits,
			}
		}
		return found, nil
	}
	return nil, &usageError{fmt.Errorf("--toolchain %q is neither host nor container", o.toolchain)}
}

func (o *options) proxy(language string) string {
	if language == toolchain.Go && o.goProxy != "" {
		return o.goProxy
	}
	return o.registries[language]
}

// caches of a language lie in the working directory; of builds by hand, whose working
// directory is gone afterwards, in the user's cache.
func (o *options) caches(language string) map[string]string {
	root := filepath.Join(o.work, "cache")
	if o.byHand {
		if dir, err := os.UserCacheDir(); err == nil {
			root = filepath.Join(dir, "mesh-builder")
		}
	}
	dirs := map[string]string{}
	for _, name := range toolchain.CacheNames(language) {
		dirs[name] = filepath.Join(root, language, name)
	}
	return dirs
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
