package builder_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

const allKinds = `{
  "name": "all",
  "artifacts": {
    "site":  {"kind": "archive",  "path": "site"},
    "prog":  {"kind": "bundle",   "path": "prog"},
    "tiny":  {"kind": "upstream", "reference": "docker.io/library/tiny:1.0"},
    "image": {"kind": "image",    "dockerfile": "image/Dockerfile"}
  },
  "resources": [
    {"id": "site",  "type": "archive",   "artifact": "site", "path": "/srv/site"},
    {"id": "prog",  "type": "container", "artifact": "prog"},
    {"id": "tiny",  "type": "container", "artifact": "tiny"},
    {"id": "image", "type": "container", "artifact": "image"}
  ]
}`

const hello = "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n"

// writeAllKinds commits a module of all four kinds at modules/all.
func writeAllKinds(repo *testenv.Repo) string {
	repo.Write("modules/all/module.json", allKinds)
	repo.Write("modules/all/site/index.html", "<p>hello</p>\n")
	repo.Write("modules/all/site/css/a.css", "p {}\n")
	repo.Write("modules/all/prog/go.mod", "module example.org/prog\n\ngo 1.24\n")
	repo.Write("modules/all/prog/main.go", hello)
	repo.Write("modules/all/image/Dockerfile", "FROM docker.io/library/tiny:1.0\nCOPY data /data\nENV A=b\nCMD [\"/data/run\"]\n")
	repo.Write("modules/all/image/data/run", "#!/bin/sh\n")
	repo.Write("modules/all/image/data/sub/file", "text\n")
	return repo.Commit("all kinds")
}

// tinyLayout makes a small image on disk.
func tinyLayout(t testing.TB, client *registry.Client) string {
	t.Helper()
	dir := t.TempDir()
	var tar bytes.Buffer
	if err := archive.Pack(&tar, []archive.Entry{memory("etc/tiny", "tiny\n")}); err != nil {
		t.Fatal(err)
	}
	layer, layout := filepath.Join(dir, "layer.tar"), filepath.Join(dir, "layout")
	if err := os.WriteFile(layer, tar.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := client.BundleImage(t.Context(), layout, registry.BundleImage{
		Layer: layer, Digest: schema.Digest(tar.Bytes()), Size: int64(tar.Len()), Platform: platform, Entrypoint: []string{"/none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return layout
}

// carryTiny carries it into the registry as docker.io/library/tiny:1.0.
func carryTiny(t testing.TB, client *registry.Client) {
	t.Helper()
	if _, err := client.PushLayout(t.Context(), tinyLayout(t, client), "docker.io/library/tiny:1.0"); err != nil {
		t.Fatal(err)
	}
}

func TestS1_016_EveryReferenceOfTheManifestIsADigestThatResolves(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t)
	r := newRig(t, "one", reg).withEngine()
	carryTiny(t, r.client)
	repo := testenv.Git(t)
	writeAllKinds(repo)

	result := r.built(schema.Job{Repository: repo.URL(), Path: "modules/all"})

	manifest, err := r.client.Manifest(t.Context(), "all", result.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Resources) != 4 {
		t.Fatalf("%d resources", len(manifest.Resources))
	}
	for _, res := range manifest.Resources {
		built := manifest.Artifacts[res.ID]
		switch res.Type {
		case schema.TypeArchive:
			want := "https://registry.mesh/v2/modules/all/blobs/" + built.Digest
			if res.Source != want || res.Digest != built.Digest {
				t.Errorf("%s: source %s digest %s, want %s", res.ID, res.Source, res.Digest, want)
			}
			body, size, err := r.client.Blob(t.Context(), "modules/all", res.Digest)
			if err != nil || size != built.Size {
				t.Errorf("%s: %d bytes, %v", res.ID, size, err)
				continue
			}
			body.Close()
		case schema.TypeContainer:
			digest := built.Digest
			if built.Image != "" {
				digest = built.Image
			}
			if want := "registry.mesh/modules/all/" + res.ID + "@" + digest; res.Image != want {
				t.Errorf("%s: image %s, want %s", res.ID, res.Image, want)
			}
			if err := r.client.Resolve(t.Context(), "modules/all/"+res.ID, digest); err != nil {
				t.Errorf("%s: %v", res.ID, err)
			}
		}
		if res.Artifact != "" {
			t.Errorf("%s still names an artifact", res.ID)
		}
	}
}
