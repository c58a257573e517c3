package provenance_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/schema"
)

func newKey(t *testing.T) (ed25519.PrivateKey, provenance.Key) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return private, provenance.Key{Builder: "n1", Public: public}
}

func digest(text string) string { return schema.Digest([]byte(text)) }

// build is one that has everything.
func build() provenance.Build {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return provenance.Build{
		ID: "b-1", Builder: "n1", Module: "web", Digest: digest("manifest"), Recipe: digest("recipe"),
		Artifacts: map[string]schema.Built{
			"program": {Kind: schema.KindBundle, Digest: digest("program"), Image: digest("program's image"), Language: "go"},
			"pg":      {Kind: schema.KindUpstream, Digest: digest("pg"), Upstream: &schema.BuiltUpstream{Reference: "docker.io/library/postgres:16", Digest: digest("up")}},
		},
		Source: schema.Source{
			Repository: "https://forge.example/a.git", Path: "web", Ref: "refs/heads/main", Commit: strings.Repeat("a", 40), Tree: strings.Repeat("b", 40),
		},
		Toolchains: map[string]string{"go": "go1.26"}, Started: at, Finished: at.Add(time.Minute),
		Used:  []provenance.Resource{provenance.Image("docker.io/library/golang:1.26", digest("go")), provenance.Image("docker.io/library/golang:1.26", digest("go"))},
		SBOMs: []provenance.Resource{provenance.SBOM("program", digest("list"))},
	}
}

func sign(t *testing.T, key ed25519.PrivateKey, s provenance.Statement) []byte {
	t.Helper()
	envelope, err := provenance.Sign(key, s)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

func TestStatementIsOfTheSpecificationsForm(t *testing.T) {
	t.Parallel()
	private, key := newKey(t)
	envelope := sign(t, private, provenance.New(build()))
	if again := sign(t, private, provenance.New(build())); !bytes.Equal(envelope, again) {
		t.Error("the same build signed twice is not the same")
	}
	s, by, err := provenance.Open(envelope, []provenance.Key{key}, time.Now())
	if err != nil || by.Builder != "n1" {
		t.Fatalf("opened as %+v by %+v: %v", s, by, err)
	}
	if found := provenance.Differences(s, by.Builder, build()); len(found) > 0 {
		t.Errorf("%q", found)
	}
	var e dsse.Envelope
	if err := json.Unmarshal(envelope, &e); err != nil || e.PayloadType != "application/vnd.in-toto+json" {
		t.Fatalf("envelope %s: %v", envelope, err)
	}
	body, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"_type":"https://in-toto.io/Statement/v1"`, `"predicateType":"https://slsa.dev/provenance/v1"`,
		`{"digest":{"sha256":"` + digest("manifest")[7:] + `"},"name":"registry.mesh/modules/web"}`,
		`{"digest":{"gitCommit":"` + strings.Repeat("a", 40) + `"},"uri":"git+https://forge.example/a.git@refs/heads/main"}`,
		`"uri":"docker.io/library/postgres:16"`, `"builder":{"id":"https://controller.mesh/builders/n1"}`,
		`"startedOn":"2026-01-02T03:04:05Z"`, `"finishedOn":"2026-01-02T03:05:05Z"`, `"invocationId":"b-1"`,
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
	if n := strings.Count(string(body), "library/golang"); n != 1 {
		t.Errorf("the toolchain's image is named %d times", n)
	}
}

// The way that docs/provenance.md shows.
func TestOpenSSLVerifiesWhatWasSigned(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl on this machine")
	}
	private, _ := newKey(t)
	var e dsse.Envelope
	if err := json.Unmarshal(sign(t, private, provenance.New(build())), &e); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	body := mustDecode(t, e.Payload)
	for name, data := range map[string][]byte{
		"builder.pem":   pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
		"signed.bin":    append(fmt.Appendf(nil, "DSSEv1 28 application/vnd.in-toto+json %d ", len(body)), body...),
		"signature.bin": mustDecode(t, e.Signatures[0].Sig),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "builder.pem", "-rawin", "-in", "signed.bin", "-sigfile", "signature.bin")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Verified Successfully") {
		t.Errorf("%v: %s", err, out)
	}
}

// Every byte of what was signed and of the signature counts, and no other key opens it.
func TestAnyOtherByteIsNotWhatWasSigned(t *testing.T) {
	t.Parallel()
	private, key := newKey(t)
	envelope := sign(t, private, provenance.New(build()))
	var e dsse.Envelope
	if err := json.Unmarshal(envelope, &e); err != nil {
		t.Fatal(err)
	}
	body, signature := mustDecode(t, e.Payload), mustDecode(t, e.Signatures[0].Sig)
	open := func(change func(*dsse.Envelope)) error {
		altered := e
		altered.Signatures = append([]dsse.Signature(nil), e.Signatures...)
		change(&altered)
		text, err := json.Marshal(altered)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = provenance.Open(text, []provenance.Key{key}, time.Now())
		return err
	}
	if err := open(func(*dsse.Envelope) {}); err != nil {
		t.Fatal(err)
	}
	for i := range body {
		if err := open(func(e *dsse.Envelope) { e.Payload = flipped(body, i) }); !errors.Is(err, provenance.ErrAltered) {
			t.Fatalf("byte %d of the payload: %v", i, err)
		}
	}
	for i := range signature {
		if err := open(func(e *dsse.Envelope) { e.Signatures[0].Sig = flipped(signature, i) }); !errors.Is(err, provenance.ErrAltered) {
			t.Fatalf("byte %d of the signature: %v", i, err)
		}
	}
	for name, c := range map[string]struct {
		change func(*dsse.Envelope)
		want   error
	}{
		"another payload type": {func(e *dsse.Envelope) { e.PayloadType = "text/plain" }, provenance.ErrAltered},
		"payload cut":          {func(e *dsse.Envelope) { e.Payload = e.Payload[:len(e.Payload)-4] }, provenance.ErrAltered},
		"payload no base64":    {func(e *dsse.Envelope) { e.Payload = "!" }, provenance.ErrAltered},
		"signature cut":        {func(e *dsse.Envelope) { e.Signatures[0].Sig = "AAAA" }, provenance.ErrAltered},
		"signature no base64":  {func(e *dsse.Envelope) { e.Signatures[0].Sig = "!" }, provenance.ErrAltered},
		"signature empty":      {func(e *dsse.Envelope) { e.Signatures[0].Sig = "" }, provenance.ErrAltered},
		"no signature":         {func(e *dsse.Envelope) { e.Signatures = nil }, provenance.ErrAltered},
		"a key id of nobody's": {func(e *dsse.Envelope) { e.Signatures[0].KeyID = digest("nobody") }, provenance.ErrUnknownKey},
		"no key id":            {func(e *dsse.Envelope) { e.Signatures[0].KeyID = "" }, provenance.ErrUnknownKey},
		"a stranger's in front": {func(e *dsse.Envelope) {
			e.Signatures = append([]dsse.Signature{{KeyID: "x", Sig: "AAAA"}}, e.Signatures...)
		}, nil},
	} {
		if err := open(c.change); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for _, text := range []string{"", "null", "{}", "[]", `{"payload": 1}`, string(body)} {
		if _, _, err := provenance.Open([]byte(text), []provenance.Key{key}, time.Now()); !errors.Is(err, provenance.ErrAltered) {
			t.Errorf("opened %q: %v", text, err)
		}
	}
	_, other := newKey(t)
	if _, _, err := provenance.Open(envelope, []provenance.Key{other}, time.Now()); !errors.Is(err, provenance.ErrUnknownKey) {
		t.Errorf("opened with another key: %v", err)
	}
	if _, _, err := provenance.Open(envelope, nil, time.Now()); !errors.Is(err, provenance.ErrUnknownKey) {
		t.Errorf("opened without a key: %v", err)
	}
}

func mustDecode(t *testing.T, text string) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func flipped(data []byte, at int) string {
	altered := append([]byte(nil), data...)
	altered[at] ^= 1
	return base64.StdEncoding.EncodeToString(altered)
}

func TestWithdrawnKeyVouchesForWhatWasRecordedBefore(t *testing.T) {
	t.Parallel()
	private, key := newKey(t)
	envelope := sign(t, private, provenance.New(build()))
	key.Withdrawn = time.Now()
	if _, _, err := provenance.Open(envelope, []provenance.Key{key}, key.Withdrawn.Add(-time.Second)); err != nil {
		t.Error(err)
	}
	if _, by, err := provenance.Open(envelope, []provenance.Key{key}, key.Withdrawn.Add(time.Second)); !errors.Is(err, provenance.ErrWithdrawn) || by.Builder != "n1" {
		t.Errorf("recorded after it was withdrawn: %v by %+v", err, by)
	}
}

func TestSomethingElseSignedIsNoProvenance(t *testing.T) {
	t.Parallel()
	private, key := newKey(t)
	for name, change := range map[string]func(*provenance.Statement){
		"another statement":  func(s *provenance.Statement) { s.Type = "https://in-toto.io/Statement/v2" },
		"another predicate":  func(s *provenance.Statement) { s.PredicateType = "https://slsa.dev/provenance/v0.2" },
		"another build type": func(s *provenance.Statement) { s.Predicate.BuildDefinition.BuildType = "https://example.org" },
	} {
		s := provenance.New(build())
		change(&s)
		if _, _, err := provenance.Open(sign(t, private, s), []provenance.Key{key}, time.Now()); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// What a statement says and the record does not is found, whatever it is.
func TestEveryDifferenceToTheRecordIsFound(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*provenance.Build){
		"manifest":        func(b *provenance.Build) { b.Digest = digest("other") },
		"module":          func(b *provenance.Build) { b.Module = "other" },
		"repository":      func(b *provenance.Build) { b.Source.Repository = "https://forge.example/b.git" },
		"path":            func(b *provenance.Build) { b.Source.Path = "" },
		"commit":          func(b *provenance.Build) { b.Source.Commit = strings.Repeat("c", 40) },
		"tree":            func(b *provenance.Build) { b.Source.Tree = strings.Repeat("c", 40) },
		"recipe":          func(b *provenance.Build) { b.Recipe = digest("other") },
		"build":           func(b *provenance.Build) { b.ID = "b-2" },
		"builder":         func(b *provenance.Build) { b.Builder = "n2" },
		"artifact":        func(b *provenance.Build) { b.Artifacts["program"] = schema.Built{Digest: digest("other")} },
		"artifact's more": func(b *provenance.Build) { b.Artifacts["more"] = schema.Built{Digest: digest("more")} },
		"artifact's less": func(b *provenance.Build) { delete(b.Artifacts, "pg") },
	} {
		said := build()
		change(&said)
		if found := provenance.Differences(provenance.New(said), "n1", build()); len(found) == 0 {
			t.Errorf("another %s was not found", name)
		}
	}
	if found := provenance.Differences(provenance.New(build()), "n2", build()); len(found) != 1 {
		t.Errorf("signed by another builder: %q", found)
	}
}
