package builder_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func TestMain(m *testing.M) { testenv.Run(m, registrytest.Leaks()) }

// signingKey is that of every rig.
var signingKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// rig is a builder with its surroundings.
type rig struct {
	*builder.Builder
	t        testing.TB
	registry *registrytest.Registry
	client   *registry.Client
	owner    string // of what is made in the engine, which all tests share
}

// hostToolchains are the machine's own, trusted with the tests' sources.
func hostToolchains(t testing.TB) map[string]toolchain.Toolchain {
	t.Helper()
	found := map[string]toolchain.Toolchain{}
	for _, language := range toolchain.Languages() {
		program, err := toolchain.Find(t.Context(), language)
		if errors.Is(err, toolchain.ErrNotInstalled) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		caches := map[string]string{}
		for _, name := range toolchain.CacheNames(language) {
			caches[name] = filepath.Join(cache(t), language, name)
		}
		found[language] = toolchain.Host{Language: language, Program: program, Caches: caches, Trusted: true}
	}
	return found
}

// newRig starts a builder that has a registry and the machine's toolchains, and no engine.
func newRig(t testing.TB, name string, reg *registrytest.Registry) *rig {
	t.Helper()
	client := reg.Client(t)
	r := &rig{t: t, registry: reg, client: client, Builder: &builder.Builder{
		Name: name, Work: t.TempDir(), Registry: client,
		Toolchains: hostToolchains(t), SigningKey: func() (ed25519.PrivateKey, error) { return signingKey, nil },
	}}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// cache is shared by the tests of a run: compiling the standard library once is enough.
func cache(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "mesh-builder-test-cache")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// withEngine gives the builder a container engine.
func (r *rig) withEngine() *rig {
	r.t.Helper()
	r.owner = r.Name + "-" + strings.ToLower(rand.Text())
	e, err := engine.Open(testenv.Engine(r.t), r.owner)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = e.Close() })
	r.Engine = e
	return r
}

// build makes one build and logs what it said.
func (r *rig) build(job schema.Job) schema.Result {
	r.t.Helper()
	return r.buildIn(r.t.Context(), job)
}

func (r *rig) buildIn(ctx context.Context, job schema.Job) schema.Result {
	r.t.Helper()
	job.Schema = schema.Version
	if job.ID == "" {
		job.ID = "b-1"
	}
	result := r.Build(ctx, job, nil)
	if r.t.Failed() || testing.Verbose() {
		r.t.Log(result.Log)
	}
	return result
}

// built makes a build that must end well.
func (r *rig) built(job schema.Job) schema.Result {
	r.t.Helper()
	result := r.build(job)
	if result.Outcome != schema.OutcomeBuilt {
		r.t.Fatalf("outcome %s: %+v\n%s", result.Outcome, result.Error, result.Log)
	}
	return result
}

// failed makes a build that must fail for a reason.
func (r *rig) failed(job schema.Job, outcome schema.Outcome, reason builder.Reason) schema.Result {
	r.t.Helper()
	result := r.build(job)
	if result.Error == nil || result.Outcome != outcome || result.Error.Reason != reason {
		r.t.Fatalf("outcome %s: %+v, want %s %s\n%s", result.Outcome, result.Error, outcome, reason, result.Log)
	}
	if result.Manifest != nil || result.Digest != "" {
		r.t.Error("a result that is not built has a manifest")
	}
	return result
}
