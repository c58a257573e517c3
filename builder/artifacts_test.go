package builder_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// compile makes a static program of a Go source file.
func compile(t testing.TB, source string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", "prog", "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOCACHE="+filepath.Join(cache(t), "go", "build"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "prog"))
	if err != nil {
		t.Fatal(err)
	}
	return string(program)
}

func writeProgram(t testing.TB, repo *testenv.Repo, path, content string) {
	t.Helper()
	repo.Write(path, content)
	if err := os.Chmod(filepath.Join(repo.Dir, path), 0o755); err != nil {
		t.Fatal(err)
	}
}

// start runs an image of the mesh's registry, as "modules/x/y@sha256:…", and gives its output.
func (r *rig) start(image string, command ...string) string {
	r.t.Helper()
	tag := r.Engine.Tag("run-" + strings.ToLower(filepath.Base(r.t.Name())))
	pr, pw := io.Pipe()
	go func() {
		_, err := r.client.SaveImage(r.t.Context(), schema.RegistryName+"/"+image, platform, tag, r.t.TempDir(), pw)
		pw.CloseWithError(err)
	}()
	if err := r.Engine.Load(r.t.Context(), pr); err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		if err := r.Engine.Remove(r.t.Context(), tag); err != nil {
			r.t.Error(err)
		}
	}()
	var lines []string
	err := r.Engine.Run(r.t.Context(), engine.RunSpec{Image: tag, Command: command, Network: "none"}, func(line string) { lines = append(lines, line) })
	if err != nil {
		r.t.Fatalf("%v: %q", err, lines)
	}
	return strings.Join(lines, "\n")
}

func TestS1_095_ArtifactIsOfOneOfFourKinds(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	repo.Write("module.json", `{"name": "x", "artifacts": {"x": {"kind": "rpm", "path": "."}}}`)
	repo.Commit("a fifth kind")
	result := r.failed(schema.Job{Repository: repo.URL()}, schema.OutcomeFailed, builder.ReasonInvalidModule)
	for _, kind := range []string{"rpm", schema.KindImage, schema.KindBundle, schema.KindArchive, schema.KindUpstream} {
		if !strings.Contains(result.Error.Message, kind) {
			t.Errorf("message does not name %s: %s", kind, result.Error.Message)
		}
	}
}

// sayWhere prints what it can see, and fails where there is a network.
const sayWhere = `package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	interfaces, err := net.Interfaces()
	if err != nil {
		panic(err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			fmt.Println("network", i.Name)
			os.Exit(3)
		}
	}
	if len(os.Args) > 1 {
		entries, _ := os.ReadDir(os.Args[1])
		for _, e := range entries {
			fmt.Println(e.Name())
		}
	}
	fmt.Println("arg", os.Getenv("WHO"))
}
`

func TestS1_096_ImageIsBuiltFromADockerfileInTheModuleAndRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t)).withEngine()
	repo := testenv.Git(t)
	repo.Write("m/module.json", `{"name": "m", "artifacts": {"admin": {"kind": "image", "dockerfile": "admin/Dockerfile", "context": "admin", "args": {"WHO": "me"}}},
  "resources": [{"id": "admin", "type": "container", "artifact": "admin"}]}`)
	repo.Write("m/admin/Dockerfile", "FROM scratch AS first\nARG WHO\nENV WHO=$WHO\nCOPY . /data\nCOPY bin/prog /prog\n"+
		"RUN [\"/prog\"]\nFROM first\nENTRYPOINT [\"/prog\"]\n")
	repo.Write("m/admin/.dockerignore", "*.log\nignored\n!kept.log\n")
	for _, name := range []string{"a.log", "kept.log", "ignored/x", "plain"} {
		repo.Write("m/admin/"+name, name)
	}
	writeProgram(t, repo, "m/admin/bin/prog", compile(t, sayWhere))
	repo.Write("Dockerfile", "FROM scratch\n")
	repo.Write("out/module.json", `{"name": "out", "artifacts": {"admin": {"kind": "image", "dockerfile": "../Dockerfile"}}}`)
	repo.Commit("an image")

	// RUN /prog in it fails where there is a network.
	result := r.built(schema.Job{Repository: repo.URL(), Path: "m"})
	got := r.start("modules/m/admin@"+result.Manifest.Artifacts["admin"].Digest, "/prog", "/data")
	if want := "Dockerfile\nbin\nkept.log\nplain\narg me"; got != want {
		t.Errorf("the container says %q, want %q", got, want)
	}
	r.failed(schema.Job{Repository: repo.URL(), Path: "out"}, schema.OutcomeFailed, builder.ReasonInvalidModule)

	repo.Write("m/admin/Dockerfile", "FROM scratch AS first\nCOPY . /data\nFROM scratch\nCOPY --from=first /data /data\nCOPY none /\n")
	repo.Commit("fails in its last step")
	r.failed(schema.Job{Repository: repo.URL(), Path: "m"}, schema.OutcomeFailed, builder.ReasonImage)
	if left := inEngine(t, r.owner); len(left) > 0 {
		t.Errorf("left in the engine: %q", left)
	}
}

func TestS1_098_BundleNeedsNoDockerfileAndItsContainerStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t)).withEngine()
	carryTiny(t, r.client)
	repo := testenv.Git(t)
	repo.Write("module.json", `{"name": "m", "artifacts": {
    "base": {"kind": "upstream", "reference": "docker.io/library/tiny:1.0"},
    "bare": {"kind": "bundle", "path": "src", "package": "./cmd/hello"},
    "based": {"kind": "bundle", "path": "src", "package": "./cmd/hello", "base": "base", "entrypoint": ["/hello", "/etc"]}},
  "resources": [{"id": "bare", "type": "container", "artifact": "bare"}, {"id": "based", "type": "container", "artifact": "based"}]}`)
	repo.Write("src/go.mod", "module example.org/m\n\ngo 1.24\n")
	repo.Write("src/cmd/hello/main.go", sayWhere)
	repo.Commit("a bundle")
	result := r.built(schema.Job{Repository: repo.URL()})
	bare, based := result.Manifest.Artifacts["bare"], result.Manifest.Artifacts["based"]
	if bare.Digest != based.Digest || bare.Image == based.Image {
		t.Errorf("one program gave the bundles %s and %s, and the images %s and %s", bare.Digest, based.Digest, bare.Image, based.Image)
	}
	if got := r.start("modules/m/bare@"+bare.Image, "/hello"); got != "arg" {
		t.Errorf("on the empty image it says %q", got)
	}
	if got := r.start("modules/m/based@"+based.Image, "/hello", "/etc"); !strings.Contains(got, "tiny\n") {
		t.Errorf("on its base it says %q", got)
	}
}

func TestS1_099_ArchiveIsTheDirectoryAsItStands(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	r.Toolchains = nil // a toolchain that is started would fail the build
	repo := testenv.Git(t)
	files := map[string]string{
		"go.mod": "module broken\n\ngo 1.24\n", "main.go": "this does not compile", "crlf": "a\r\nb\r\n", "$Id$": "$Id$\n",
		"aux.txt": "reserved elsewhere", "deep/er/file": "x", ".gitattributes": "* text eol=crlf ident\n*.x export-ignore\n", "left.x": "not left out",
	}
	repo.Write("module.json", `{"name": "m", "artifacts": {"a": {"kind": "archive", "path": "a"}}}`)
	repo.Run("config", "core.autocrlf", "false")
	for name, text := range files {
		repo.Write("a/"+name, text)
	}
	writeProgram(t, repo, "a/run", "#!/bin/sh\n")
	if err := os.Symlink("deep/er/file", filepath.Join(repo.Dir, "a/link")); err != nil {
		t.Fatal(err)
	}
	repo.Commit("an archive")
	result := r.built(schema.Job{Repository: repo.URL()})
	built := result.Manifest.Artifacts["a"]
	body, size, err := r.client.Blob(t.Context(), "modules/m", built.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	dir := filepath.Join(t.TempDir(), "out")
	if err := archive.Unpack(body, dir, size, 0); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		// What was committed is what git holds, not what the work tree's attributes make of it.
		want := repo.Run("rev-parse", "HEAD:a/"+name)
		if got := repo.Run("hash-object", "--no-filters", filepath.Join(dir, name)); got != want {
			t.Errorf("%s has hash %s, committed was %s", name, got, want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "run")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("run: %v %v", info, err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "link")); err != nil || target != "deep/er/file" {
		t.Errorf("link: %q %v", target, err)
	}
}

// borrowed is the way to a registry that is not the mesh's; it can be cut.
type borrowed struct {
	http.RoundTripper
	token string
	cut   atomic.Bool
}

func (b *borrowed) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.cut.Load() {
		return nil, errors.New("the outside is cut")
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(req)
}

func TestS1_100_UpstreamIsMirroredAndPullableWithTheOutsideCut(t *testing.T) {
	t.Parallel()
	own, outside := registrytest.Start(t), registrytest.Start(t)
	image, err := outside.Client(t).PushImageLayout(t.Context(), "library/tiny", tinyLayout(t, outside.Client(t)))
	if err != nil {
		t.Fatal(err)
	}
	way := &borrowed{RoundTripper: trusting(t, outside), token: outside.Token("*", registry.ActionPull)}
	config := own.Config()
	config.Outside, config.Attempts = way, 2
	r := newRig(t, "one", own)
	r.Registry = registrytest.Client(t, config)
	repo := testenv.Git(t)
	repo.Write("module.json", fmt.Sprintf(`{"name": "m", "artifacts": {"tiny": {"kind": "upstream", "reference": "%s/library/tiny:%s"}},
  "resources": [{"id": "tiny", "type": "container", "artifact": "tiny"}]}`, outside.Address, registry.ContentTag(image.Digest)))
	repo.Commit("borrows an image")
	built := r.built(schema.Job{Repository: repo.URL()}).Manifest.Artifacts["tiny"]
	if built.Digest != image.Digest || built.Upstream == nil || built.Upstream.Digest != image.Digest {
		t.Fatalf("recorded %+v, upstream is %s", built, image.Digest)
	}
	way.cut.Store(true)
	if _, err := r.Registry.SaveImage(t.Context(), "registry.mesh/modules/m/tiny@"+built.Digest, platform, "x", t.TempDir(), io.Discard); err != nil {
		t.Errorf("with the outside cut: %v", err)
	}
	r.failed(schema.Job{Repository: repo.URL()}, schema.OutcomeFailed, builder.ReasonUpstream)
}
