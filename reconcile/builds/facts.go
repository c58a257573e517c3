package builds

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/graph"
	"github.com/mesh-control/mesh/internal/recipe"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// moduleFacts is everything recorded of one module, whoever recorded it.
type moduleFacts struct {
	name, repository, path, ref string
	source                      catalogue.SourceFacts
	problem                     string // of the source
	seen                        time.Time
	document                    *schema.Module
	manifest                    *catalogue.ManifestFacts
	recorded                    time.Time
	build                       string // that made the manifest
	recipe                      string // the manifest's source would be built by now; "" without one
	last                        *catalogue.BuildFacts
	nodes                       []string
}

type facts struct {
	modules map[string]*moduleFacts
	refs    map[string]string // repository to the ref asked for
}

func (f *facts) names() []string { return slices.Sorted(maps.Keys(f.modules)) }

func (f *facts) module(name string) *moduleFacts {
	if f.modules[name] == nil {
		f.modules[name] = &moduleFacts{name: name}
	}
	return f.modules[name]
}

// toolchains are the versions builders compile with now, by language: what is configured, and
// of any other language what the newest manifest was compiled with.
func (b *Builds) toolchains(manifests map[string]inventory.ManifestRow) map[string]string {
	now := map[string]string{}
	newest := map[string]time.Time{}
	for _, row := range manifests {
		for language, version := range recipe.Used(&row.Document) {
			if row.Recorded.After(newest[language]) {
				now[language], newest[language] = version, row.Recorded
			}
		}
	}
	maps.Copy(now, b.config.Toolchains)
	return now
}

func (b *Builds) reasons(m *moduleFacts) []catalogue.Reason {
	return catalogue.Behind(m.source, m.manifest, m.last, m.recipe)
}

// facts reads sources, manifests, last builds and assignments in one transaction's view.
func (b *Builds) facts(ctx context.Context, q inventory.Queryer) (*facts, error) {
	f := &facts{modules: map[string]*moduleFacts{}, refs: map[string]string{}}
	if err := readSources(ctx, q, f); err != nil {
		return nil, err
	}
	manifests, err := inventory.Manifests(ctx, q)
	if err != nil {
		return nil, err
	}
	upstreams, err := readUpstreams(ctx, q)
	if err != nil {
		return nil, err
	}
	toolchains := b.toolchains(manifests)
	for name, row := range manifests {
		m := f.module(name)
		m.recipe = recipe.Again(&row.Document, toolchains)
		source := row.Document.Source
		m.manifest = &catalogue.ManifestFacts{Digest: row.Digest, Commit: source.Commit, Tree: source.Tree, Recipe: row.Document.Recipe, Moved: moved(row, upstreams)}
		m.recorded, m.build = row.Recorded, row.Build
		if m.repository == "" {
			m.repository, m.path = source.Repository, source.Path
		}
	}
	if err := readLast(ctx, q, f); err != nil {
		return nil, err
	}
	if err := readSuspended(ctx, q, f); err != nil {
		return nil, err
	}
	assignments, err := inventory.Assignments(ctx, q)
	for _, a := range assignments {
		m := f.module(a.Module)
		m.nodes = append(m.nodes, a.Node)
	}
	return f, err
}

func readSources(ctx context.Context, q inventory.Queryer, f *facts) error {
	ready, err := hasTable(ctx, q, sourcesTable)
	if err != nil || !ready {
		return err
	}
	rows, err := q.Query(ctx, `
SELECT s.module, s.holder, r.url, r.ref, r.suspended, s.path, s.commit, s.tree, s.document, s.error, s.state, s.seen_at
FROM catalogue.sources s JOIN catalogue.repositories r ON r.id = s.repository_id
WHERE s.module <> '' ORDER BY s.module, s.holder DESC, r.url, s.path`)
	if err != nil {
		return fmt.Errorf("read sources: %w", err)
	}
	var name, url, ref, path, problem string
	var holder, suspended bool
	var source catalogue.SourceFacts
	var document []byte
	var seen time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &holder, &url, &ref, &suspended, &path, &source.Commit, &source.Tree, &document, &problem, &source.State, &seen}, func() error {
		f.refs[url] = ref
		m := f.module(name)
		if m.source.State != "" {
			// Another place with this name. The holder stands; the conflict is said.
			if m.problem == "" && problem != "" {
				m.problem = problem
			}
			return nil
		}
		m.repository, m.path, m.ref, m.source, m.problem, m.seen = url, path, ref, source, problem, seen
		if suspended {
			m.source.Suspended = "its repository is suspended, and not looked at"
		}
		if len(document) > 0 {
			m.document = &schema.Module{}
			if err := json.Unmarshal(document, m.document); err != nil {
				return fmt.Errorf("source of %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read sources: %w", err)
	}
	return nil
}

// readLast reads the last build that ended of each module.
func readLast(ctx context.Context, q inventory.Queryer, f *facts) error {
	rows, err := q.Query(ctx, `
SELECT DISTINCT ON (module) module, id, outcome, commit, tree, recipe, coalesce(result->'error'->>'message', '')
FROM mesh.builds WHERE outcome <> '' AND outcome <> 'cancelled' AND module <> '' ORDER BY module, requested_at DESC`)
	if err != nil {
		return fmt.Errorf("read last builds: %w", err)
	}
	var name, outcome string
	var last catalogue.BuildFacts
	_, err = pgx.ForEachRow(rows, []any{&name, &last.ID, &outcome, &last.Commit, &last.Tree, &last.Recipe, &last.Message}, func() error {
		build := last
		build.Failed = outcome == string(schema.OutcomeFailed) || outcome == string(schema.OutcomeRefused)
		f.module(name).last = &build
		return nil
	})
	if err != nil {
		return fmt.Errorf("read last builds: %w", err)
	}
	return nil
}

// status is the module as an operator sees it.
func (b *Builds) status(m *moduleFacts) api.ModuleStatus {
	status := api.ModuleStatus{
		Module: m.name, Repository: m.repository, Path: m.path, Commit: m.source.Commit, Tree: m.source.Tree,
		Error: m.problem, Nodes: m.nodes, Seen: m.seen, Published: m.recorded, Suspended: m.source.Suspended,
	}
	if m.manifest != nil {
		status.Digest, status.BuiltFrom = m.manifest.Digest, m.manifest.Commit
	}
	reasons := b.reasons(m)
	status.State = catalogue.State(m.source, reasons)
	if m.source.State == "" {
		status.State = catalogue.StateOK // built, and in no repository that is watched
		if m.manifest == nil {
			status.State = catalogue.StateRemoved
		}
	}
	for _, reason := range reasons {
		status.Reasons = append(status.Reasons, api.Reason{Code: reason.Code, Message: reason.Message})
	}
	return status
}

// Statuses lists every module, by name.
func (b *Builds) Statuses(ctx context.Context, q inventory.Queryer) ([]api.ModuleStatus, error) {
	f, err := b.facts(ctx, q)
	if err != nil {
		return nil, err
	}
	out := make([]api.ModuleStatus, 0, len(f.modules))
	for _, name := range f.names() {
		out = append(out, b.status(f.modules[name]))
	}
	return out, nil
}

// Parts are what the modules provide and require: as their sources say, and as their
// manifests do where no watched repository has them.
func (b *Builds) Parts(ctx context.Context, q inventory.Queryer) ([]graph.Module, error) {
	f, err := b.facts(ctx, q)
	if err != nil {
		return nil, err
	}
	manifests, err := inventory.Manifests(ctx, q)
	if err != nil {
		return nil, err
	}
	var parts []graph.Module
	for _, name := range f.names() {
		if document := f.modules[name].document; document != nil {
			parts = append(parts, graph.OfModule(document))
		} else if row, ok := manifests[name]; ok {
			parts = append(parts, graph.OfManifest(&row.Document))
		}
	}
	return parts, nil
}
