package builds

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/giturl"
	"github.com/mesh-control/mesh/internal/recipe"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// The work kinds of this extension.
const (
	workPublish = "build.publish"
	workCancel  = "build.cancel"
	workSweep   = "build.sweep"
	// workUpstreams sees what the tags that modules borrow mean now.
	workUpstreams = "build.upstreams"
	// workRecipients tells the catalogue whose keys private repositories' credentials go to.
	workRecipients = "build.recipients"
)

// request records the builds asked for; their jobs are published after the commit.
func (b *Builds) request(ctx context.Context, c *extension.Context, tx pgx.Tx, caller string, in api.BuildRequestIn) (api.BuildRequestOut, error) {
	named := in.Repository != "" || in.Path != "" || in.Ref != ""
	switch {
	case in.Behind && named:
		return api.BuildRequestOut{}, &api.Error{
			Code: api.CodeInvalidInput, Message: "building what is behind and naming a repository exclude each other",
			Remedy: "mesh build --behind, or mesh build URL [PATH]",
		}
	case named && in.Repository == "":
		return api.BuildRequestOut{}, &api.Error{Code: api.CodeInvalidInput, Message: "a path or ref without a repository", Remedy: "mesh build URL [PATH]"}
	case in.Behind && len(in.Modules) > 0, named && len(in.Modules) > 0, !in.Behind && !named && len(in.Modules) == 0:
		return api.BuildRequestOut{}, &api.Error{Code: api.CodeInvalidInput, Message: "say what to build: what is behind, modules by name, or a repository", Remedy: "mesh build --behind"}
	}
	jobs, err := b.jobs(ctx, tx, in)
	if err != nil {
		return api.BuildRequestOut{}, err
	}
	out := api.BuildRequestOut{Builds: []api.Build{}}
	for _, job := range jobs {
		job.Verify = in.Verify
		build, err := b.ask(ctx, c, tx, caller, job)
		if err != nil {
			return out, err
		}
		out.Builds = append(out.Builds, build)
	}
	out.Consumers = b.consumers(ctx)
	return out, nil
}

// wanted is a job with the recipe hash its manifest would carry, where that is known.
type wanted struct {
	schema.Job
	recipe string
	// The source as the catalogue has it, and since when; empty where it has none.
	commit, tree string
	seen         time.Time
}

func (b *Builds) jobs(ctx context.Context, tx pgx.Tx, in api.BuildRequestIn) ([]wanted, error) {
	facts, err := b.facts(ctx, tx)
	if err != nil {
		return nil, err
	}
	if in.Repository != "" {
		job := b.named(facts, in)
		return []wanted{job}, checkJob(job.Job)
	}
	var jobs []wanted
	if in.Behind {
		for _, name := range facts.names() {
			module := facts.modules[name]
			if catalogue.Buildable(b.reasons(module), in.Retry) {
				jobs = append(jobs, b.job(module))
			}
		}
		return jobs, nil
	}
	for _, name := range in.Modules {
		module, ok := facts.modules[name]
		if !ok || module.repository == "" {
			return nil, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no module %s", name), Remedy: "mesh status"}
		}
		if module.source.State != catalogue.StateOK {
			return nil, &api.Error{Code: api.CodeConflict, Message: fmt.Sprintf("the source of %s is %s: %s", name, module.source.State, module.problem), Remedy: "mesh why " + name}
		}
		jobs = append(jobs, b.job(module))
	}
	return jobs, nil
}

// checkJob gives a caller's job the verdict the builder would give it.
func checkJob(job schema.Job) error {
	_, err := giturl.Parse(job.Repository)
	if err == nil {
		var body []byte
		if body, err = json.Marshal(job); err == nil {
			_, err = schema.ParseJob("job", body)
		}
	}
	if err != nil {
		return &api.Error{Code: api.CodeInvalidInput, Message: err.Error(), Remedy: "mesh build URL [PATH], with the path of a folder inside the repository"}
	}
	return nil
}

// job builds a module from its own recorded ref; the builder resolves it when it builds.
func (b *Builds) job(m *moduleFacts) wanted {
	job := wanted{
		Job: schema.Job{
			Schema: schema.Version, ID: newID(), Repository: m.repository, Path: m.path, Ref: m.ref,
			Module: m.name, Recipe: recipe.Version,
		},
		recipe: m.recipe, commit: m.source.Commit, tree: m.source.Tree, seen: m.seen,
	}
	// What was built of this very input is not asked for when the input's meaning has changed.
	if m.manifest != nil && len(m.manifest.Moved) == 0 {
		job.Current = &schema.CurrentManifest{Digest: m.manifest.Digest, Tree: m.manifest.Tree, Recipe: m.manifest.Recipe}
	}
	return job
}

// named builds a repository and path, whatever else is behind. A module the mesh knows at
// that place lends its ref where none is given.
func (b *Builds) named(facts *facts, in api.BuildRequestIn) wanted {
	for _, module := range facts.modules {
		if module.repository == in.Repository && module.path == in.Path && (in.Ref == "" || in.Ref == module.ref) {
			return b.job(module)
		}
	}
	ref := in.Ref
	if ref == "" {
		ref = facts.refs[in.Repository]
	}
	return wanted{Job: schema.Job{
		Schema: schema.Version, ID: newID(), Repository: in.Repository, Path: in.Path, Ref: ref, Recipe: recipe.Version,
	}}
}

func (b *Builds) record(ctx context.Context, c *extension.Context, tx pgx.Tx, caller string, job wanted) (api.Build, error) {
	requested := time.Time{}
	err := tx.QueryRow(ctx, `
INSERT INTO mesh.builds (id, repository, path, ref, module, job, recipe, noticed_commit, noticed_tree, requested_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING requested_at`,
		job.ID, job.Repository, job.Path, job.Ref, job.Module, job.Job, job.recipe, job.commit, job.tree, caller).Scan(&requested)
	if err != nil {
		return api.Build{}, fmt.Errorf("record build of %s %s: %w", job.Repository, job.Path, err)
	}
	if err := c.Work.Enqueue(ctx, tx, workPublish, job.ID, time.Time{}); err != nil {
		return api.Build{}, err
	}
	return api.Build{
		ID: job.ID, Repository: job.Repository, Path: job.Path, Ref: job.Ref, Module: job.Module,
		State: stateQueued, Noticed: job.commit, Requested: requested,
	}, nil
}

// newID is a correlation id: 16 random bytes in hex.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
