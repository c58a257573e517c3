package builder_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// Every field a module.json has that is no artifact's recipe reads back from the manifest.
func TestS1_007_WhatIsNoRecipeSurvivesIntoTheManifest(t *testing.T) {
	t.Parallel()
	const text = `{
  "name": "whole",
  "description": "every field",
  "provides": [{ "name": "whole-thing", "scope": "mesh", "port": 5432, "grants": "/var/lib/mesh/whole/grants" }],
  "requires": ["private-network", { "name": "artifact-store", "optional": true }],
  "claims": ["database-server", { "port": 5432 }, { "device": "gpu", "count": 2, "topology": "nvlink-all" }],
  "capabilities": ["container-runtime"],
  "settings": { "size": { "type": "integer", "default": 100, "minimum": 10, "maximum": 1000, "description": "how large" } },
  "artifacts": { "files": { "kind": "archive", "path": "files" } },
  "resources": [
    { "id": "data", "type": "directory", "path": "/var/lib/mesh/whole", "mode": "0700" },
    { "id": "text", "type": "file", "path": "/etc/mesh/whole/text", "mode": "0600", "content": "size ${size}\n" },
    { "id": "files", "type": "archive", "artifact": "files", "path": "/srv/whole", "after": ["data"] }
  ],
  "secrets": { "artifact-store": "/etc/mesh/whole/secrets/store.json" },
  "own-secrets": { "superuser": "/etc/mesh/whole/secrets/superuser", "licence": { "path": "/etc/mesh/whole/secrets/licence", "given": true } }
}`
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	repo.Write("whole/module.json", text)
	repo.Write("whole/files/a", "a\n")
	repo.Commit("every field")
	result := r.built(schema.Job{Repository: repo.URL(), Path: "whole"})
	manifest, err := r.client.Manifest(t.Context(), "whole", result.Digest)
	if err != nil {
		t.Fatal(err)
	}
	module, err := schema.ParseModule("module.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want, got := reflect.ValueOf(*module), reflect.ValueOf(manifest)
	for i := range want.NumField() {
		name := want.Type().Field(i).Name
		if name == "Schema" || name == "Name" || name == "Artifacts" || name == "Resources" {
			continue // compared below, or nothing to do with what is built
		}
		field := got.FieldByName(name)
		if !field.IsValid() {
			t.Errorf("a manifest has no field %s", name)
			continue
		}
		a, errA := json.Marshal(want.Field(i).Interface())
		b, errB := json.Marshal(field.Interface())
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("%s is %s in the manifest, %s in module.json", name, b, a)
		}
	}
	if manifest.Module != "whole" || len(manifest.Resources) != 3 {
		t.Fatalf("module %s with %d resources", manifest.Module, len(manifest.Resources))
	}
	for i, resource := range module.Resources {
		built := manifest.Resources[i]
		if resource.Artifact != "" {
			if built.Digest != result.Manifest.Artifacts[resource.Artifact].Digest || built.Source == "" {
				t.Errorf("%s: source %s, digest %s", resource.ID, built.Source, built.Digest)
			}
			resource.Artifact, built.Source, built.Digest = "", "", ""
		}
		if !reflect.DeepEqual(resource, built) {
			t.Errorf("resource %+v became %+v", resource, built)
		}
	}
}

// goldenManifest is the digest of the manifest below under recipe 2. It changes with the recipe's
// version and with nothing else.
const goldenManifest = "sha256:4e30871384e4ffcf015eed15d1f7fe7f857a616842a8e15d69540d57a35fd022"

func TestS1_091_ManifestHasTheGoldenDigest(t *testing.T) {
	t.Parallel()
	r := newRig(t, "init", registrytest.Start(t))
	const url = "https://git.example.org/golden.git"
	repo := testenv.Git(t)
	r.AllowLocal, r.CloneFrom = true, map[string]string{url: repo.Bare}
	commitFiles(t, repo, `{"name": "golden", "artifacts": {"a": {"kind": "archive", "path": "a"}},
  "resources": [{"id": "a", "type": "archive", "artifact": "a", "path": "/srv/golden"}]}`, func(yield func(name, text string) bool) {
		yield("index.html", "<p>golden</p>\n")
	})
	if got := r.built(schema.Job{Repository: url}).Digest; got != goldenManifest {
		t.Errorf("manifest %s, golden %s", got, goldenManifest)
	}
}
