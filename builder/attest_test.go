package builder_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// recorded is what a mesh keeps of a build.
func recorded(r schema.Result) provenance.Build {
	m := r.Manifest
	return provenance.Build{ID: r.ID, Builder: r.Builder, Module: r.Module, Digest: r.Digest, Artifacts: m.Artifacts, Source: m.Source, Recipe: m.Recipe}
}

// signed gives what a rig's builder signed of a build.
func (r *rig) signed(result schema.Result) provenance.Statement {
	r.t.Helper()
	a, subject, err := r.client.Attachment(r.t.Context(), registry.ManifestRepository(result.Module), result.Provenance)
	if err != nil {
		r.t.Fatal(err)
	}
	if subject != result.Digest || a.ArtifactType != provenance.MediaTypeStatement || len(a.Files) != 1 || a.Files[0].MediaType != provenance.MediaTypeEnvelope {
		r.t.Fatalf("provenance %+v is of %s, the manifest is %s", a, subject, result.Digest)
	}
	key := provenance.Key{Builder: r.Name, Public: signingKey.Public().(ed25519.PublicKey)}
	s, by, err := provenance.Open(a.Files[0].Data, []provenance.Key{key}, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	if found := provenance.Differences(s, by.Builder, recorded(result)); len(found) > 0 {
		r.t.Errorf("the statement says something else than the result: %q", found)
	}
	return s
}

// sbom gives the list of what a bundle was made of.
func (r *rig) sbom(result schema.Result, artifact string) []byte {
	r.t.Helper()
	repository := registry.ManifestRepository(result.Module)
	listed, err := r.client.Referrers(r.t.Context(), repository, result.Digest)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, one := range listed {
		if one.ArtifactType != provenance.MediaTypeSBOM {
			continue
		}
		a, _, err := r.client.Attachment(r.t.Context(), repository, one.Digest)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, file := range a.Files {
			if file.Name == artifact && file.MediaType == provenance.MediaTypeSBOM {
				return file.Data
			}
		}
	}
	r.t.Fatalf("no list of what %s was made of among %+v", artifact, listed)
	return nil
}

func TestProvenanceSaysWhatWasBuiltOfWhatByWhom(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t)
	one := newRig(t, "one", reg)
	carryTiny(t, one.client)
	repo := testenv.Git(t)
	repo.Write("m/module.json", `{"name": "all", "artifacts": {"tiny": {"kind": "upstream", "reference": "docker.io/library/tiny:1.0"},
  "site": {"kind": "archive", "path": "site"}, "program": {"kind": "bundle", "path": "program"}},
  "resources": [{"id": "program", "type": "container", "artifact": "program"}]}`)
	repo.Write("m/site/index.html", "hello")
	for name, text := range samples(t)[toolchain.Go].files {
		repo.Write("m/program/"+name, text)
	}
	commit := repo.Commit("all kinds that take no engine")
	job := schema.Job{Repository: repo.URL(), Path: "m", ID: "b-7"}
	before := time.Now()
	result := one.built(job)
	s := one.signed(result)

	definition, run := s.Predicate.BuildDefinition, s.Predicate.RunDetails
	if p := definition.ExternalParameters; p.Repository != repo.URL() || p.Commit != commit || p.Path != "m" || p.Module != "all" || p.Ref != result.Ref || p.Recipe != result.Manifest.Recipe {
		t.Errorf("external parameters %+v", p)
	}
	if run.Builder.ID != "https://controller.mesh/builders/one" || run.Metadata.InvocationID != "b-7" {
		t.Errorf("run details %+v", run)
	}
	if m := run.Metadata; m.StartedOn.Before(before.Add(-time.Second)) || m.FinishedOn.Before(m.StartedOn) {
		t.Errorf("started %s, finished %s", m.StartedOn, m.FinishedOn)
	}
	artifacts := result.Manifest.Artifacts
	var subjects []string
	for _, subject := range s.Subject {
		subjects = append(subjects, subject.Name+"@sha256:"+subject.Digest["sha256"])
	}
	want := []string{
		"registry.mesh/modules/all@" + result.Digest, "registry.mesh/modules/all/program@" + artifacts["program"].Digest,
		"registry.mesh/modules/all/program#image@" + artifacts["program"].Image, "registry.mesh/modules/all/site@" + artifacts["site"].Digest,
		"registry.mesh/modules/all/tiny@" + artifacts["tiny"].Digest,
	}
	if !slices.Equal(subjects, want) {
		t.Errorf("subjects %q\nwant %q", subjects, want)
	}
	if d := definition.ResolvedDependencies; len(d) != 2 || d[0].Digest["gitCommit"] != commit || d[1].URI != "docker.io/library/tiny:1.0" ||
		"sha256:"+d[1].Digest["sha256"] != artifacts["tiny"].Upstream.Digest {
		t.Errorf("dependencies %+v", d)
	}
	list := one.sbom(result, "program")
	if b := run.Byproducts; len(b) != 1 || b[0].Name != "program" || "sha256:"+b[0].Digest["sha256"] != schema.Digest(list) {
		t.Errorf("byproducts %+v", b)
	}

	// Another builder, and another registry: the same digests, another signature.
	elsewhere := newRig(t, "two", registrytest.Start(t))
	carryTiny(t, elsewhere.client)
	other := elsewhere.built(job)
	if other.Digest != result.Digest || other.Provenance == result.Provenance {
		t.Errorf("built elsewhere: manifest %s provenance %s, here %s %s", other.Digest, other.Provenance, result.Digest, result.Provenance)
	}
	if elsewhere.signed(other).Predicate.RunDetails.Builder.ID != "https://controller.mesh/builders/two" {
		t.Error("signed in another's name")
	}
	if !bytes.Equal(elsewhere.sbom(other, "program"), list) {
		t.Error("the list of what the bundle was made of differs from one builder to the other")
	}
	// Built again: what was said before is still there.
	again := one.built(job)
	one.signed(result)
	one.signed(again)
}

func TestWithoutItsSignatureNothingIsPublished(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t)
	r := newRig(t, "one", reg)
	repo := testenv.Git(t)
	writeSite(repo, ".", "a")
	repo.Commit("a module")
	job := schema.Job{Repository: repo.URL()}
	r.SigningKey = func() (ed25519.PrivateKey, error) { return nil, errors.New("the key is gone") }
	if failed := r.failed(job, schema.OutcomeFailed, builder.ReasonPublish); !strings.Contains(failed.Error.Message, "the key is gone") || failed.Provenance != "" {
		t.Errorf("failed with %+v, provenance %q", failed.Error, failed.Provenance)
	}
	r.SigningKey = func() (ed25519.PrivateKey, error) { return signingKey, nil }
	front := newFront(t, reg)
	front.left.Store(1 << 40)
	r.Registry = front.client
	result := r.built(job)
	if err := r.client.Resolve(t.Context(), "modules/a", result.Digest); err != nil {
		t.Error(err)
	}
	r.SigningKey = nil
	if unsigned := r.built(job); unsigned.Provenance != "" || unsigned.Digest != result.Digest || !strings.Contains(unsigned.Log, "no provenance") {
		t.Errorf("without a key: %+v\n%s", unsigned.Provenance, unsigned.Log)
	}
}

// Each language's list has the one dependency of its sample, as scanners know it.
func TestBundleSaysWhatItWasMadeOf(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	want := map[string]string{
		toolchain.Go: "pkg:golang/example.org/greeting@v1.0.0", toolchain.Node: "pkg:npm/greeting@1.0.0",
		toolchain.Rust: "pkg:cargo/greeting@1.0.0", toolchain.Python: "pkg:pypi/greeting@1.0",
	}
	for language, s := range samples(t) {
		repo.Write(language+"/module.json", `{"name": "`+language+`", "artifacts": {"program": {"kind": "bundle", "path": "."}}}`)
		for name, text := range s.files {
			repo.Write(language+"/"+name, text)
		}
	}
	commit := repo.Commit("one of each language")
	for _, language := range slices.Sorted(maps.Keys(want)) {
		if r.Toolchains[language] == nil {
			t.Logf("not on this machine: %s", language)
			continue
		}
		result := r.built(schema.Job{Repository: repo.URL(), Path: language})
		list := r.sbom(result, "program")
		bom := &cdx.BOM{}
		if err := cdx.NewBOMDecoder(bytes.NewReader(list), cdx.BOMFileFormatJSON).Decode(bom); err != nil {
			t.Fatal(err)
		}
		var purls []string
		for _, c := range *bom.Components {
			purls = append(purls, c.PackageURL)
			if c.PackageURL == want[language] && language != toolchain.Go && (c.Hashes == nil || len(*c.Hashes) != 1) {
				t.Errorf("%s has the hashes %v", c.PackageURL, c.Hashes)
			}
		}
		if !slices.Contains(purls, want[language]) || slices.ContainsFunc(purls, func(p string) bool { return strings.Contains(p, "hello") }) {
			t.Errorf("%s is made of %q, want %s and nothing of its own", language, purls, want[language])
		}
		about := bom.Metadata.Component
		if about.Version != commit || about.Group != language || "sha256:"+(*about.Hashes)[0].Value != result.Manifest.Artifacts["program"].Digest {
			t.Errorf("%s: the list is about %+v", language, about)
		}
		if bom.SerialNumber != "" || !json.Valid(list) {
			t.Errorf("%s: serial number %q", language, bom.SerialNumber)
		}
		if at, err := time.Parse(time.RFC3339, bom.Metadata.Timestamp); err != nil || at.Unix() != committedAt(t, repo) {
			t.Errorf("%s: time %s, %v", language, bom.Metadata.Timestamp, err)
		}
	}
}

func committedAt(t *testing.T, repo *testenv.Repo) int64 {
	t.Helper()
	var at int64
	if err := json.Unmarshal([]byte(strings.TrimSpace(repo.Run("show", "-s", "--format=%ct", "HEAD"))), &at); err != nil {
		t.Fatal(err)
	}
	return at
}
