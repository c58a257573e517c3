package reconciletest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/recipe"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/schema"
)

// Repository is where every module played comes from, each in modules/NAME.
const Repository = "https://forge.example/modules.git"

// CatalogueSpeaks records that a catalogue looks at repositories, now and for as long as any
// test runs.
func (m *Mesh) CatalogueSpeaks() {
	m.T.Helper()
	key, err := catalogue.NewKey()
	if err == nil {
		_, err = m.Pool.Exec(m.T.Context(), `
WITH again AS (UPDATE catalogue.instances SET led_at = now() RETURNING 1)
INSERT INTO catalogue.instances (fingerprint, public_key, poll, seen_at, led_at)
SELECT $1, $2, '1 hour', now(), now() WHERE NOT EXISTS (SELECT FROM again)`, key.Fingerprint, key.Public)
	}
	if err != nil {
		m.T.Fatal(err)
	}
}

// Source records a module's source, as the catalogue does when it sees a commit.
func (m *Mesh) Source(module, version string) {
	m.T.Helper()
	document, err := json.Marshal(schema.Module{Name: module})
	if err == nil {
		_, err = m.Pool.Exec(m.T.Context(), `
WITH repository AS (
  INSERT INTO catalogue.repositories (url, ref, state, last_success) VALUES ($1, '', 'ok', now()) ON CONFLICT (url) DO UPDATE SET url = excluded.url RETURNING id)
INSERT INTO catalogue.sources (module, holder, repository_id, path, commit, tree, blob, document, state, seen_at)
SELECT $2, true, id, $3, $4, $5, '', $6, 'ok', now() FROM repository
ON CONFLICT (module) WHERE holder DO UPDATE SET commit = excluded.commit, tree = excluded.tree`,
			Repository, module, "modules/"+module, Hex40(module+version), Hex40("tree"+module+version), document)
	}
	if err != nil {
		m.T.Fatal(err)
	}
}

// Manifest is one of a module with one container, which the strict parser takes. Its recipe
// is not today's; [Current] makes it so. change may be nil.
func Manifest(module, version string, change func(*schema.Manifest)) schema.Manifest {
	image := Digest(module + version)
	m := schema.Manifest{
		Schema: 1, Module: module, Recipe: Digest("recipe"),
		Source: schema.Source{Repository: Repository, Path: "modules/" + module, Ref: "refs/heads/main", Commit: Hex40(module + version), Tree: Hex40("tree" + module + version)},
		Artifacts: map[string]schema.Built{
			"server": {Kind: "image", Digest: image, Size: 10, MediaType: "application/vnd.oci.image.manifest.v1+json", Platforms: []string{"linux/amd64"}},
		},
		Resources: []schema.Resource{{ID: "run", Type: "container", Image: schema.RegistryName + "/modules/" + module + "/server@" + image}},
	}
	if change != nil {
		change(&m)
	}
	return m
}

// Current gives a manifest the recipe it would be built by now, so that only another source
// makes its module behind.
func Current(m *schema.Manifest) { m.Recipe = recipe.Again(m, nil) }

// Result is what a builder says that made a manifest.
func Result(m schema.Manifest) schema.Result {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return schema.Result{
		Schema: 1, ID: rand.Text(), Outcome: schema.OutcomeBuilt, Repository: m.Source.Repository, Path: m.Source.Path, Ref: m.Source.Ref,
		Module: m.Module, Commit: m.Source.Commit, Tree: m.Source.Tree, Digest: Digest("manifest" + m.Module + m.Source.Commit), Manifest: &m,
		Builder: "b", Started: now, Ended: now, Log: "cloning " + m.Source.Path + "\n",
	}
}

// Hold makes modules ones the mesh holds, as recording their results does.
func (m *Mesh) Hold(results ...schema.Result) {
	m.T.Helper()
	m.Transact(func(tx pgx.Tx) error {
		for _, one := range results {
			if err := builds.Adopt(m.T.Context(), tx, "test", one); err != nil {
				return err
			}
		}
		return m.invalidate(tx, m.nodes)
	})
}

// Work is a job that a builder has taken.
type Work struct {
	schema.Job
	builder *Builder
}

// Say tells how far the build is.
func (w Work) Say(phase schema.Phase, line string) {
	w.builder.m.Publish(w.builder.conn,
		bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildProgress(w.ID), CorrelationID: w.ID},
		schema.Progress{ID: w.ID, Phase: phase, Line: line, Builder: w.builder.node, At: time.Now().UTC()})
}

// Cancelled asks, as a builder does, whether the build was cancelled.
func (w Work) Cancelled() bool {
	ctx, cancel := context.WithTimeout(w.builder.m.T.Context(), Patience)
	defer cancel()
	return w.builder.conn.Publish(ctx, bus.Message{
		Exchange: bus.Answers, Key: bus.KeyBuildCancelled(w.ID), CorrelationID: w.ID, Body: []byte(`{}`),
	}) == nil
}

// Builder plays a builder, with its account.
type Builder struct {
	m    *Mesh
	node string
	conn *bus.Conn
}

// Builder starts one that answers each job with what build makes of it; with nothing, where
// that is nil.
func (m *Mesh) Builder(node string, build func(Work) *schema.Result) *Builder {
	m.T.Helper()
	b := &Builder{m: m, node: node, conn: m.Dial(node, bus.BuilderAccount)}
	m.consume(b.conn, bus.Builds, func(d bus.Delivery) {
		job, err := schema.ParseJob("job", d.Body)
		if err != nil {
			m.T.Errorf("job: %v", err)
			return
		}
		if r := build(Work{*job, b}); r != nil {
			r.ID = job.ID
			b.Answer(*r)
		}
	})
	return b
}

// Answer sends a result, of whichever build.
func (b *Builder) Answer(r schema.Result) {
	b.m.Publish(b.conn, bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildResult, CorrelationID: r.ID}, r)
}
