package builder

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/recipe"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// moduleFile is the name of the file that makes a path a module.
const moduleFile = "module.json"

// run is one build under way.
type run struct {
	builder *Builder
	job     schema.Job
	journal *journal
	result  schema.Result

	dir    string // of this build alone
	phase  schema.Phase
	clone  *clone.Clone
	path   string // of the module, "" is the root
	module *schema.Module
	// languages of the bundles by artifact, and versions of their toolchains by language.
	languages map[string]string
	versions  map[string]string
	recipe    string
	plan      []step
	staged    map[string]*staged
	// unchanged is the mesh's manifest when it was made from the same input.
	unchanged *schema.Manifest
	done      bool // nothing is left to do
}

// all passes through the phases. The directory is removed however it ends.
func (r *run) all(ctx context.Context) (err error) {
	if r.dir, err = r.directory(); err != nil {
		return failed(ReasonWorkingDirectory, "", "make a directory for the build: %w", err)
	}
	defer func() {
		if r.clone != nil {
			_ = r.clone.Close()
		}
		if left := removeAll(r.dir); left != nil {
			r.builder.log().Warn("directory of a build cannot be removed", "build", r.job.ID, "error", left)
		}
	}()
	steps := []struct {
		phase schema.Phase
		do    func(context.Context) error
	}{
		{schema.PhaseClone, r.fetch},
		{schema.PhaseRead, r.read},
		{schema.PhasePlan, r.makePlan},
		{schema.PhaseBuild, r.build},
		{schema.PhaseVerify, r.verify},
		{schema.PhasePublish, r.publish},
	}
	for _, s := range steps {
		if r.done {
			return nil
		}
		if err := r.during(ctx, s.phase, "", s.do); err != nil {
			return err
		}
	}
	return nil
}

// during runs one phase, timed and announced.
func (r *run) during(ctx context.Context, phase schema.Phase, artifact string, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.phase = phase
	if artifact == "" {
		if r.builder.OnPhase != nil {
			r.builder.OnPhase(phase)
		}
		r.say("", "")
	}
	started := time.Now()
	err := do(ctx)
	r.result.Phases = append(r.result.Phases, schema.PhaseTime{Phase: phase, Artifact: artifact, Millis: time.Since(started).Milliseconds()})
	return err
}

func (r *run) say(artifact, format string, args ...any) {
	line := format
	if len(args) > 0 {
		line = fmt.Sprintf(format, args...)
	}
	r.journal.say(r.phase, artifact, line)
}

func (r *run) directory() (string, error) {
	if err := os.MkdirAll(r.builder.builds(), 0o700); err != nil {
		return "", err
	}
	var suffix [6]byte
	_, _ = rand.Read(suffix[:])
	dir := filepath.Join(r.builder.builds(), hex.EncodeToString(suffix[:]))
	return dir, os.Mkdir(dir, 0o700)
}

// fetch brings the commit the ref stands for now.
func (r *run) fetch(ctx context.Context) error {
	if strings.HasPrefix(r.job.Path, "/") || strings.Contains("/"+r.job.Path+"/", "/../") {
		return refused(ReasonPathOutside, "give the path relative to the repository's root", "path %q leads out of the repository", r.job.Path)
	}
	r.path = strings.Trim(path.Clean("/"+r.job.Path), "/")
	if w := r.job.Recipe; w != "" && !strings.HasPrefix(w, "sha256:") && w != RecipeVersion {
		return refused(ReasonOtherRecipe, "bring builder and controller to one release", "recipe %s is wanted, this builder follows %s", w, RecipeVersion)
	}
	req := clone.Request{
		Repository: r.job.Repository, From: r.builder.CloneFrom[r.job.Repository], Ref: r.job.Ref, Directory: r.dir,
		AllowLocal: r.builder.AllowLocal, Limit: r.builder.MaxClone,
	}
	if err := r.credential(&req); err != nil {
		return err
	}
	c, err := clone.Get(ctx, req)
	if err != nil {
		return err
	}
	r.clone = c
	r.result.Commit, r.result.Ref = c.Commit, c.Ref
	r.say("", "cloned %s at %s, commit %s, into %s", r.result.Repository, c.Ref, c.Commit, filepath.Base(r.dir))
	return nil
}

func (r *run) credential(req *clone.Request) error {
	if len(r.job.Credentials) == 0 {
		return nil // public, or given no credential: the server says which
	}
	sealed, ok := r.job.Credentials[r.builder.Name]
	if !ok || r.builder.Open == nil {
		return refused(ReasonCredential, "mesh builder issue --node "+r.builder.Name+" and push it, then build again",
			"repository's credential is not sealed to builder %s", r.builder.Name)
	}
	data, err := r.builder.Open(r.job.Repository, sealed)
	if err != nil {
		return refused(ReasonCredential, "seal the repository's credential to this builder again", "open repository credential: %w", err)
	}
	var c git.Credential
	if err := json.Unmarshal(data, &c); err != nil {
		return refused(ReasonCredential, "give the repository's credential again", "repository credential cannot be read")
	}
	for _, secret := range git.Secrets(&c) {
		r.journal.hide(secret)
	}
	req.Credential = &c
	return nil
}

// read parses module.json and ends the build when the mesh already holds what it would give.
func (r *run) read(ctx context.Context) error {
	file := path.Join(r.path, moduleFile)
	data, err := r.clone.Read(file)
	if errors.Is(err, clone.ErrNotFound) {
		return failed(ReasonNoModule, "give the path of a directory that has a "+moduleFile,
			"no %s at path %q of repository %s, commit %s (looked for %s)", moduleFile, r.path, r.result.Repository, r.clone.Commit, file)
	}
	if err != nil {
		return err
	}
	if r.module, err = schema.ParseModule(file, data); err != nil {
		return failed(ReasonInvalidModule, "mesh module check shows the same before a commit", "%w", err)
	}
	if r.job.Module != "" && r.module.Name != r.job.Module {
		r.say("", "module is called %s here, the job calls it %s", r.module.Name, r.job.Module)
	}
	r.result.Module = r.module.Name
	if r.result.Tree, err = r.clone.TreeHash(r.path); err != nil {
		return err
	}
	if r.languages, err = r.languagesOf(r.module); err != nil {
		return err
	}
	if r.versions, err = r.toolchains(ctx); err != nil {
		return err
	}
	r.recipe = recipe.For(r.versions)
	if w := r.job.Recipe; strings.HasPrefix(w, "sha256:") && w != r.recipe {
		return refused(ReasonOtherRecipe, "bring builder and controller to one release", "recipe %s is wanted, this builder's is %s", w, r.recipe)
	}
	r.say("", "module %s, tree %s, recipe %s", r.module.Name, r.result.Tree, r.recipe)
	return r.compare(ctx)
}

// toolchains gives the versions the recipe takes in.
func (r *run) toolchains(ctx context.Context) (map[string]string, error) {
	versions := map[string]string{}
	for _, language := range r.languages {
		if versions[language] != "" {
			continue
		}
		version, err := r.builder.Toolchains[language].Version(ctx)
		if err != nil {
			return nil, failed(ReasonNoToolchain, "see that the toolchain of this builder works", "ask the %s toolchain for its version: %w", language, err)
		}
		versions[language] = version
	}
	return versions, nil
}

// compare ends the build when the manifest the mesh holds was made from the same tree by the
// same recipe and is still there.
func (r *run) compare(ctx context.Context) error {
	current := r.job.Current
	if current == nil || r.builder.Registry == nil || current.Tree != r.result.Tree || current.Recipe != r.recipe {
		return nil
	}
	manifest, err := r.builder.Registry.Manifest(ctx, r.module.Name, current.Digest)
	if registry.NotFound(err) {
		r.say("", "manifest %s is no longer in the registry: building it again", current.Digest)
		return nil
	}
	if err != nil {
		return failed(ReasonPublish, "see that the registry answers", "%w", err)
	}
	r.say("", "unchanged: manifest %s was built from this tree by this recipe", current.Digest)
	r.unchanged = &manifest
	if !r.job.Verify {
		r.stay()
	}
	return nil
}

// stay ends a build whose input is what the mesh's manifest was made from. The inputs decide,
// and not what came out: a module that is not reproducible would be another each time.
func (r *run) stay() {
	r.result.Outcome, r.result.Digest, r.result.Manifest = schema.OutcomeUnchanged, r.job.Current.Digest, r.unchanged
	r.done = true
}

// finish completes the result.
func (r *run) finish(ctx context.Context, err error) schema.Result {
	if err != nil {
		r.result.Digest, r.result.Manifest, r.result.Provenance = "", nil, ""
		r.result.Outcome, r.result.Error = r.outcome(ctx, err)
		r.result.Error.Message = r.journal.redact(r.result.Error.Message)
		r.say("", "%s: %s: %s", r.result.Outcome, r.result.Error.Reason, r.result.Error.Message)
	}
	r.result.Log = r.journal.log()
	r.result.Ended = time.Now().UTC()
	return r.result
}

func (r *run) outcome(ctx context.Context, err error) (schema.Outcome, *schema.BuildError) {
	var short *Failure
	switch {
	case ctx.Err() == nil:
		return explain(err)
	case errors.As(context.Cause(ctx), &short):
		return explain(short)
	case errors.Is(context.Cause(ctx), errDeadline):
		return schema.OutcomeFailed, &schema.BuildError{
			Reason: ReasonDeadline, Message: "deadline passed in phase " + string(r.phase), Remedy: "give the build more time, or its artifacts less to do",
		}
	}
	return schema.OutcomeCancelled, &schema.BuildError{Reason: ReasonCancelled, Message: "cancelled in phase " + string(r.phase)}
}
