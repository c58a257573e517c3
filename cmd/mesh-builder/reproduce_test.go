package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// golden are the digests of the artifacts below, on every machine and in every release. What a
// compiler makes is golden for its version, and the version stands in the manifest.
var golden = map[string]string{
	"site":          "sha256:03484a05666fa6c527f20febe16aab2291600cbebe8509c8468097cf04f31f96",
	"tiny":          "sha256:5d678f265dc9dce69c4900aaeef0a11dd58aabf5a6d3a3775bd8c50e5791706f",
	"image":         "sha256:c252a62dfa6a7709e81dbfcf3dcb4c508e82dab9bcf087d32d0e7f92e0ef6bf0",
	"prog go1.26.8": "sha256:78f8a9f02c2a1a0657abf7a52fbf32af4dbd00999c6d30ca2aae1f48de9902c0",
}

// Two builders that share nothing build one commit: each has its own name, engine, registry,
// umask, time zone and locale, and the second builds later than the first.
func TestS1_091_TwoBuildersGiveEqualDigestsForAllFourKinds(t *testing.T) {
	first, second := newLab(t), newLab(t)
	writeAllKinds(first)
	commit := first.repo.Commit("all kinds")
	engines := []string{testenv.Engine(t), buildertest.PrivateEngine(t)}

	var results []schema.Result
	for i, one := range []struct {
		lab        *lab
		name, mask string
		cache      string // of compiled packages; "" begins without any
		env        []string
	}{
		{first, "alpha", "022", warmCache(t), []string{"TZ=UTC", "LANG=C"}},
		{second, "omega", "077", "", []string{"TZ=Pacific/Kiritimati", "LANG=tr_TR.UTF-8", "LC_ALL=tr_TR.UTF-8", "USER=somebody", "GOMAXPROCS=1", "GOFLAGS=-trimpath=false"}},
	} {
		carryTiny(t, one.lab.registry.Client(t))
		broker := credential(t, schema.Credential{URL: first.BuilderURL(one.name), Fingerprint: first.Fingerprint})
		p := start(t, "run", one.mask, one.env, "--broker-credential", broker, "--store-credential", one.lab.store,
			"--work", workDir(t, one.cache), "--name", one.name, "--engine", engines[i])
		first.Order(schema.Job{ID: "by-" + one.name, Repository: first.repo.URL(), Path: "modules/all"})
		var result schema.Result
		select { // the two labs read results of one broker: whichever was given it
		case result = <-first.Results:
		case result = <-second.Results:
		case <-timeout():
			t.Fatalf("no result\n%s", p.log)
		}
		if result.Outcome != schema.OutcomeBuilt || result.Builder != one.name || result.Commit != commit {
			t.Fatalf("%s: %s %+v\n%s", one.name, result.Outcome, result.Error, result.Log)
		}
		p.kill()
		results = append(results, result)
	}
	a, b := results[0], results[1]
	if len(a.Manifest.Artifacts) != 4 {
		t.Fatalf("%d artifacts", len(a.Manifest.Artifacts))
	}
	for name, built := range a.Manifest.Artifacts {
		other := b.Manifest.Artifacts[name]
		want, ok := golden[name]
		if !ok {
			if want, ok = golden[name+" "+built.Toolchain]; !ok {
				t.Logf("%s of %s %s is %s, for which there is no golden digest", name, built.Language, built.Toolchain, built.Digest)
			}
		}
		if ok && built.Digest != want && runtime.GOARCH == "amd64" {
			t.Errorf("%s is %s, golden is %s", name, built.Digest, want)
		}
		if built.Digest != other.Digest || built.Image != other.Image || built.Size != other.Size {
			t.Errorf("%s: %+v and %+v", name, built, other)
		}
	}
	if a.Digest != b.Digest {
		t.Errorf("manifests %s and %s", a.Digest, b.Digest)
	}
	if !maps.Equal(storeOf(t, first), storeOf(t, second)) {
		t.Error("the two registries hold different blobs")
	}
}

// warmCache is kept between runs, so that the standard library is compiled once less.
func warmCache(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "mesh-builder-test-go")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// workDir makes a builder's directory, with a cache of compiled packages when one is given.
func workDir(t *testing.T, cache string) string {
	t.Helper()
	dir := t.TempDir()
	if cache == "" {
		return dir
	}
	if err := os.MkdirAll(filepath.Join(dir, "cache"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(cache, filepath.Join(dir, "cache", "go")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// storeOf lists the blobs of a registry.
func storeOf(t *testing.T, l *lab) map[string]bool {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(l.registry.Dir, "docker/registry/v2/blobs/sha256/*/*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%d blobs, %v", len(found), err)
	}
	blobs := map[string]bool{}
	for _, f := range found {
		blobs[filepath.Base(f)] = true
	}
	return blobs
}

func writeAllKinds(l *lab) {
	l.repo.Write("modules/all/module.json", `{
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
}`)
	l.repo.Write("modules/all/site/index.html", "<p>hello</p>\n")
	l.repo.Write("modules/all/site/css/a.css", "p {}\n")
	l.repo.Write("modules/all/prog/go.mod", "module example.org/prog\n\ngo 1.24\n\ntoolchain go1.24.1\n")
	l.repo.Write("modules/all/prog/main.go", "package main\n\nfunc main() { println(\"hello\") }\n")
	l.repo.Write("modules/all/image/Dockerfile", "FROM docker.io/library/tiny:1.0\nCOPY . /data/\nENV A=b\nCMD [\"/data/run\"]\n")
	l.repo.Write("modules/all/image/run", "#!/bin/sh\n")
	l.repo.Write("modules/all/image/sub/file", "text\n")
}

// carryTiny carries a small image in as docker.io/library/tiny:1.0.
func carryTiny(t *testing.T, client *registry.Client) {
	t.Helper()
	dir := t.TempDir()
	var tar bytes.Buffer
	if err := archive.Pack(&tar, []archive.Entry{{Name: "etc", Kind: archive.Directory}}); err != nil {
		t.Fatal(err)
	}
	layer, layout := filepath.Join(dir, "layer.tar"), filepath.Join(dir, "layout")
	if err := os.WriteFile(layer, tar.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := client.BundleImage(t.Context(), layout, registry.BundleImage{
		Layer: layer, Digest: schema.Digest(tar.Bytes()), Size: int64(tar.Len()), Platform: "linux/amd64", Entrypoint: []string{"/none"},
	})
	if err == nil {
		_, err = client.PushLayout(t.Context(), layout, "docker.io/library/tiny:1.0")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestS1_066_StartedByHandItBuildsALocalDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"m/module.json":     `{"name": "m", "artifacts": {"site": {"kind": "archive", "path": "site"}}}`,
		"m/site/index.html": "<p>hello</p>\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "m"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	for path, want := range map[string]int{"m": exitOK, "none": exitFailed} {
		var out, log bytes.Buffer
		code := run(t.Context(), []string{"build", dir, path, "--toolchain", "container"}, &out, &log, nil)
		if code != want {
			t.Errorf("%s: exit %d\n%s%s", path, code, &out, &log)
		}
		if text := map[int]string{exitOK: "built m from commit", exitFailed: "ModuleFileNotFound"}[want]; !bytes.Contains(out.Bytes(), []byte(text)) {
			t.Errorf("%s: %s", path, &out)
		}
	}
}

func TestWrongUse(t *testing.T) {
	t.Parallel()
	store := credential(t, schema.Credential{URL: "https://127.0.0.1:1", Fingerprint: "sha256:00"})
	for _, args := range [][]string{
		{"--colour"}, {}, {"build"}, {"build", "a", "b", "c"},
		{"build", ".", "--toolchain", "none", "--store-credential", store},
	} {
		var out, log bytes.Buffer
		if code := run(t.Context(), args, &out, &log, nil); code != exitUsage || log.Len() == 0 {
			t.Errorf("%q: exit %d, %s", args, code, &log)
		}
	}
}
