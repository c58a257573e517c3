package builder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// attest attaches to the manifest that is about to be published the lists of what its bundles
// were made of, and what this builder says of the build and of them, signed.
func (r *run) attest(ctx context.Context, subject registry.Subject) error {
	var used, lists []provenance.Resource
	for _, inside := range r.clone.Submodules() {
		used = append(used, provenance.Commit(inside.Repository, "", inside.Commit))
	}
	sboms := registry.Attachment{ArtifactType: provenance.MediaTypeSBOM}
	for _, name := range slices.Sorted(maps.Keys(r.staged)) {
		s := r.staged[name]
		used = append(used, s.used...)
		if s.sbom == nil {
			continue
		}
		lists = append(lists, provenance.SBOM(name, schema.Digest(s.sbom)))
		sboms.Files = append(sboms.Files, registry.AttachedFile{Name: name, MediaType: provenance.MediaTypeSBOM, Data: s.sbom})
	}
	if len(lists) > 0 {
		if _, err := r.builder.Registry.Attach(ctx, subject, sboms); err != nil {
			return err
		}
	}
	if r.builder.SigningKey == nil {
		r.say("", "no provenance: the builder was started without --key")
		return nil
	}
	key, err := r.builder.SigningKey()
	if err != nil {
		return fmt.Errorf("sign provenance: %w", err)
	}
	m := r.result.Manifest
	envelope, err := provenance.Sign(key, provenance.New(provenance.Build{
		ID: r.job.ID, Builder: r.builder.Name, Module: m.Module, Digest: subject.Digest, Artifacts: m.Artifacts, Source: m.Source, Recipe: m.Recipe,
		Toolchains: r.versions, Started: r.result.Started, Finished: time.Now(), Used: used, SBOMs: lists,
	}))
	if err != nil {
		return err
	}
	r.result.Provenance, err = r.builder.Registry.Attach(ctx, subject, registry.Attachment{
		ArtifactType: provenance.MediaTypeStatement,
		Annotations:  map[string]string{provenance.AnnotationPredicate: provenance.PredicateType},
		Files:        []registry.AttachedFile{{Name: "provenance.json", MediaType: provenance.MediaTypeEnvelope, Data: envelope}},
	})
	if err == nil {
		r.say("", "signed provenance %s", r.result.Provenance)
	}
	return err
}
