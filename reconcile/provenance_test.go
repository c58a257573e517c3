package reconcile_test

import (
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/reconcile"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// notary is a mesh with a registry of its own and a builder that signs.
type notary struct {
	*mesh
	store  *registrytest.Registry
	client *registry.Client
	key    ed25519.PrivateKey
}

func newNotary(t *testing.T) *notary {
	t.Helper()
	store := registrytest.Start(t)
	m := newMesh(t)
	m.Stop()
	m.Config.Registry = &reconcile.Registry{URL: store.URL, CA: store.CA, Fingerprint: store.Fingerprint, Key: store.Key}
	m.Start()
	n := &notary{mesh: m, store: store, client: store.Client(t)}
	m.node("n1")
	n.issued()
	return n
}

// issued makes the builder of n1 one that the mesh issued a key, and gives that key.
func (n *notary) issued() ed25519.PrivateKey {
	n.t.Helper()
	private, _, err := pki.NewSealingKey()
	if err == nil {
		n.key, err = pki.BuilderSigningKey(private)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.Transact(func(tx pgx.Tx) error { return builds.IssueSigningKey(n.t.Context(), tx, "n1", private) })
	return n.key
}

// published gives a result of n1's with its manifest in the registry, and what there is to sign.
func (n *notary) published(version string) (schema.Result, provenance.Build) {
	n.t.Helper()
	r := result(manifest("web", version, func(m *schema.Manifest) {
		m.Artifacts, m.Resources = map[string]schema.Built{}, nil
		current(m)
	}))
	r.Builder = "n1"
	digest, err := n.client.PublishManifest(n.t.Context(), *r.Manifest, nil, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	r.Digest = digest
	return r, provenance.Build{
		ID: r.ID, Builder: "n1", Module: "web", Digest: digest, Artifacts: r.Manifest.Artifacts, Source: r.Manifest.Source, Recipe: r.Manifest.Recipe,
		Started: r.Started, Finished: r.Ended,
	}
}

func (n *notary) sign(key ed25519.PrivateKey, b provenance.Build) []byte {
	n.t.Helper()
	envelope, err := provenance.Sign(key, provenance.New(b))
	if err != nil {
		n.t.Fatal(err)
	}
	return envelope
}

// attached attaches an envelope to the result's manifest and records the result with it.
func (n *notary) attached(r schema.Result, envelope []byte) schema.Result {
	n.t.Helper()
	digest, err := n.client.Attach(n.t.Context(), registry.Subject{Repository: "modules/web", Digest: r.Digest, Size: 1}, registry.Attachment{
		ArtifactType: provenance.MediaTypeStatement,
		Files:        []registry.AttachedFile{{Name: "provenance.json", MediaType: provenance.MediaTypeEnvelope, Data: envelope}},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	r.Provenance = digest
	n.hold(r)
	return r
}

// hold records a result as a builder's.
func (n *notary) hold(r schema.Result) {
	n.t.Helper()
	n.Transact(func(tx pgx.Tx) error { return builds.Adopt(n.t.Context(), tx, "n1", r) })
}

func (n *notary) check(r schema.Result) api.ProvenanceCheck {
	n.t.Helper()
	chain := n.traced(r.Digest)
	if chain.Check == nil {
		n.t.Fatalf("nothing was checked: %+v", chain)
	}
	return *chain.Check
}

// is checks a state and what its message names.
func (n *notary) is(check api.ProvenanceCheck, state string, words ...string) {
	n.t.Helper()
	if check.State != state {
		n.t.Errorf("%s: %s, want %s", check.State, check.Message, state)
	}
	for _, word := range words {
		if !strings.Contains(check.Message, word) {
			n.t.Errorf("%s: %q does not name %q", check.State, check.Message, word)
		}
	}
}

func TestTraceVerifiesWhoBuiltWhatWhen(t *testing.T) {
	n := newNotary(t)
	r, b := n.published("1")
	list := []byte(`{"bomFormat": "CycloneDX"}`)
	b.SBOMs = []provenance.Resource{provenance.SBOM("program", schema.Digest(list))}
	_, err := n.client.Attach(t.Context(), registry.Subject{Repository: "modules/web", Digest: r.Digest, Size: 1}, registry.Attachment{
		ArtifactType: provenance.MediaTypeSBOM, Files: []registry.AttachedFile{{Name: "program", MediaType: provenance.MediaTypeSBOM, Data: list}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r = n.attached(r, n.sign(n.key, b))
	check := n.check(r)
	n.is(check, api.ProvenanceVerified)
	if check.Builder != "n1" || check.Build != r.ID || check.Commit != r.Commit || !check.Started.Equal(r.Started) || !check.Finished.Equal(r.Ended) || check.Digest != r.Provenance {
		t.Errorf("%+v", check)
	}
	if !strings.HasPrefix(check.Key, "-----BEGIN PUBLIC KEY-----") || !json.Valid([]byte(check.Envelope)) {
		t.Errorf("key %q, envelope %q", check.Key, check.Envelope)
	}
	out := do(n.mesh, api.ModuleTrace, api.TraceIn{Subject: "web", SBOM: true})
	if len(out.SBOMs) != 1 || out.SBOMs[0].Document != string(list) || out.SBOMs[0].Artifact != "program" || out.SBOMs[0].Signed != api.ProvenanceVerified {
		t.Errorf("lists %+v", out.SBOMs)
	}

	// The key is replaced: what it signed before stands, and says so.
	old := n.key
	n.issued()
	n.is(n.check(r), api.ProvenanceVerified, "withdrawn later")
	second, b := n.published("2")
	n.is(n.check(n.attached(second, n.sign(old, b))), api.ProvenanceWithdrawn, "n1", "withdrawn")
	third, b := n.published("3")
	third = n.attached(third, n.sign(n.key, b))
	n.is(n.check(third), api.ProvenanceVerified)

	// The node is forgotten, and its builder with it.
	n.Transact(func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO mesh.builders (node, account) VALUES ('n1', 'builder.n1')`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `DELETE FROM mesh.nodes WHERE name = 'n1'`)
		}
		return err
	})
	n.is(n.check(third), api.ProvenanceVerified, "withdrawn later")
	fourth, b := n.published("4")
	n.is(n.check(n.attached(fourth, n.sign(n.key, b))), api.ProvenanceWithdrawn, "n1")
}

func TestTraceSaysWhyProvenanceIsNotBelieved(t *testing.T) {
	n := newNotary(t)
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	version := 0
	next := func() (schema.Result, provenance.Build) {
		version++
		return n.published(string(rune('a' + version)))
	}

	r, _ := next()
	n.hold(r)
	n.is(n.check(r), api.ProvenanceMissing, "recorded")

	r, b := next()
	n.is(n.check(n.attached(r, n.sign(stranger, b))), api.ProvenanceUnknownKey, "sha256:")

	r, b = next()
	envelope := n.sign(n.key, b)
	n.is(n.check(n.attached(r, []byte(strings.Replace(string(envelope), `"payload":"ey`, `"payload":"fy`, 1)))), api.ProvenanceAltered, "builder n1")

	r, b = next()
	envelope = n.sign(n.key, b)
	at := strings.Index(string(envelope), `"sig":"`) + len(`"sig":"`)
	altered := []byte(string(envelope))
	altered[at] = 'A' + (altered[at]-'A'+1)%26
	n.is(n.check(n.attached(r, altered)), api.ProvenanceAltered, "builder n1")

	r, _ = next()
	n.is(n.check(n.attached(r, []byte("\xff not JSON"))), api.ProvenanceAltered)

	r, b = next()
	b.Digest = reconciletest.Digest("another manifest")
	n.is(n.check(n.attached(r, n.sign(n.key, b))), api.ProvenanceContradicts, "not about registry.mesh/modules/web@"+r.Digest)

	r, b = next()
	b.Source.Commit = hex40("another commit")
	n.is(n.check(n.attached(r, n.sign(n.key, b))), api.ProvenanceContradicts, b.Source.Commit, r.Commit)

	// What a builder signed of one manifest, recorded of another.
	first, b := next()
	first = n.attached(first, n.sign(n.key, b))
	r, _ = next()
	r.Provenance = first.Provenance
	n.hold(r)
	n.is(n.check(r), api.ProvenanceContradicts, "attached to "+first.Digest)

	// It was there, and is gone.
	r, b = next()
	r = n.attached(r, n.sign(n.key, b))
	n.delete("modules/web", r.Provenance)
	n.is(n.check(r), api.ProvenanceMissing, "any more")
	// A referrer of another kind.
	r, _ = next()
	r.Provenance = r.Digest
	n.hold(r)
	n.is(n.check(r), api.ProvenanceAltered)
}

// delete takes a manifest out of the registry's store.
func (n *notary) delete(repository, digest string) {
	n.t.Helper()
	hex := strings.TrimPrefix(digest, "sha256:")
	if err := os.RemoveAll(filepath.Join(n.store.Dir, "docker/registry/v2/repositories", repository, "_manifests/revisions/sha256", hex)); err != nil {
		n.t.Fatal(err)
	}
}

func TestTraceAnswersWhileTheRegistryDoesNot(t *testing.T) {
	n := newNotary(t)
	r, b := n.published("1")
	r = n.attached(r, n.sign(n.key, b))
	n.Stop()
	n.Config.Registry.URL = "https://127.0.0.1:1"
	n.Start()
	n.is(n.check(r), api.ProvenanceUnreachable, "127.0.0.1:1")
	n.Stop()
	n.Config.Registry.URL, n.Config.Registry.Key = n.store.URL, reconciletest.Key(t) // whose tokens it refuses
	n.Start()
	n.is(n.check(r), api.ProvenanceUnreachable, "401")
	n.Stop()
	n.Config.Registry = nil
	n.Start()
	n.is(n.check(r), api.ProvenanceUnreachable, "no registry")
}
