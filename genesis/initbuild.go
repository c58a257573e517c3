package genesis

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/carried"
	"github.com/mesh-control/mesh/schema"
)

// carry puts the images that stand for public ones into the mesh's registry, once each.
func (in *Installer) carry(ctx context.Context) (string, error) {
	cache := in.Carried
	if cache == "" {
		cache = in.layout().path("carried")
	}
	// Broker and registry run as processes here; their images are not asked for.
	var images []carried.Image
	for _, borrow := range []func(context.Context, string) (carried.Image, error){carried.Busybox, carried.Postgres, carried.Toolchain} {
		image, err := borrow(ctx, cache)
		if err != nil {
			return "", err
		}
		images = append(images, image)
	}
	client, err := in.registryClient()
	if err != nil {
		return "", err
	}
	defer client.Close()
	for _, image := range images {
		if _, err := client.PushLayout(ctx, image.Dir, image.Reference); err != nil {
			return "", fmt.Errorf("carry %s: %w", image.Reference, err)
		}
		if strings.HasPrefix(image.Reference, carried.ToolchainReference+":") {
			in.toolchain = image.Reference
		}
	}
	return fmt.Sprintf("%d images", len(images)), nil
}

func (in *Installer) assembleSource(ctx context.Context) (string, error) {
	commit, err := AssembleSource(ctx, in.Source, in.sourceDir(), "registry", "broker")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("commit %.12s in %s", commit, in.sourceURL()), nil
}

// resultFile keeps an init build's result until it is handed over.
func (in *Installer) resultFile(module string) string {
	return in.layout().path("genesis", "results", module+".json")
}

// initBuild builds every module of the assembled source with the ordinary builder, run here
// without a broker, and publishes them. Builds of this very source that are on record are
// not made again.
func (in *Installer) initBuild(ctx context.Context) (string, error) {
	if exists(in.adopted()) {
		return "the mesh builds itself", nil
	}
	compiler, err := operatorsGo(ctx)
	if err != nil {
		return "", err
	}
	client, err := in.registryClient()
	if err != nil {
		return "", err
	}
	defer client.Close()
	b := &builder.Builder{
		Name: "genesis", Work: in.layout().path("genesis", "build"), Registry: client, AllowLocal: true,
		CloneFrom:  map[string]string{in.sourceURL(): in.sourceDir()},
		Toolchains: map[string]toolchain.Toolchain{toolchain.Go: compiler},
		SigningKey: func() (ed25519.PrivateKey, error) { return in.keys.initBuilder, nil },
		Log:        slog.New(slog.DiscardHandler),
	}
	if err := b.Start(ctx); err != nil {
		return "", err
	}
	defer b.Close()
	modules, err := in.sourceModules(ctx)
	if err != nil {
		return "", err
	}
	made := 0
	for _, module := range modules {
		before, err := in.readResult(module)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		job := schema.Job{
			Schema: schema.Version, ID: buildID(), Repository: in.sourceURL(), Path: "modules/" + module, Ref: "refs/heads/main", Module: module,
		}
		if before != nil {
			job.Current = &schema.CurrentManifest{Digest: before.Digest, Tree: before.Tree, Recipe: before.Manifest.Recipe}
		}
		started := time.Now()
		result := b.Build(ctx, job, nil)
		if result.Error != nil {
			return "", fmt.Errorf("module %s: %s: %s\n%s", module, result.Error.Reason, result.Error.Message, lastLines([]byte(result.Log)))
		}
		if result.Outcome == schema.OutcomeUnchanged {
			continue
		}
		made++
		if err := writeJSON(in.resultFile(module), result, 0o600); err != nil {
			return "", err
		}
		fmt.Fprintf(in.Out, "      %-11s %7.1fs  %s\n", module, time.Since(started).Seconds(), result.Digest)
	}
	return fmt.Sprintf("%d of %d modules built, the others as they were", made, len(modules)), nil
}

// operatorsGo is the Go of whoever installs, with the caches and the module proxy it has
// there: what was fetched and compiled to build this program is not made again.
func operatorsGo(ctx context.Context) (toolchain.Host, error) {
	program, err := toolchain.Find(ctx, toolchain.Go)
	if err != nil {
		return toolchain.Host{}, err
	}
	out, err := exec.CommandContext(ctx, program, "env", "GOCACHE", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return toolchain.Host{}, fmt.Errorf("run %s env: %w", program, err)
	}
	values := splitLines(string(out))
	if len(values) != 3 {
		return toolchain.Host{}, fmt.Errorf("%s env says %q of its caches and proxy", program, out)
	}
	return toolchain.Host{
		Language: toolchain.Go, Program: program, Caches: map[string]string{"build": values[0], "mod": values[1]}, Proxy: values[2],
		CABundle: os.Getenv("SSL_CERT_FILE"),
	}, nil
}

// sourceModules lists the folders of modules/ in the assembled source.
func (in *Installer) sourceModules(ctx context.Context) ([]string, error) {
	text, err := git(ctx, in.sourceDir(), "ls-tree", "--name-only", "refs/heads/main:modules")
	if err != nil {
		return nil, err
	}
	return splitLines(text), nil
}

func (in *Installer) readResult(module string) (*schema.Result, error) {
	text, err := os.ReadFile(in.resultFile(module))
	if err != nil {
		return nil, err
	}
	result := &schema.Result{}
	if err := json.Unmarshal(text, result); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Base(in.resultFile(module)), err)
	}
	return result, nil
}
