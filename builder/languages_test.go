package builder_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/carried"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// sample is a bundle's source with a dependency that it brings along, so that building it
// takes no network, and what its container says.
type sample struct {
	files map[string]string
	says  string
	carry func(context.Context, string) (carried.Image, error)
}

// noNetwork, in the language of a script, ends the build where an interface but the
// loopback is there.
const noNetworkJS = `const up = Object.keys(require("os").networkInterfaces()).filter(n => n !== "lo");
if (up.length) { console.error("there is a network:", up); process.exit(3); }
`

func samples(t testing.TB) map[string]sample {
	t.Helper()
	tgz := tarball(t, map[string]string{
		"package/package.json": `{"name": "greeting", "version": "1.0.0", "main": "index.js", "scripts": {"install": "exit 9"}}`,
		"package/index.js":     `module.exports = who => "hello from " + who;`,
	})
	whl := wheel(t, "greeting", "1.0", map[string]string{"greeting/__init__.py": "def greet(who):\n    return 'hello from ' + who\n"})
	sum512, sum256 := sha512.Sum512([]byte(tgz)), sha256.Sum256([]byte(whl))
	integrity := "sha512-" + base64.StdEncoding.EncodeToString(sum512[:])
	crate := strings.Repeat("ab", 32)
	return map[string]sample{
		toolchain.Go: {says: "hello from go", carry: carried.Toolchain, files: map[string]string{
			"go.mod":                               "module example.org/hello\n\ngo 1.24\n\nrequire example.org/greeting v1.0.0\n",
			"main.go":                              "package main\n\nimport (\n\t\"fmt\"\n\n\t\"example.org/greeting\"\n)\n\nfunc main() { fmt.Println(greeting.From(\"go\")) }\n",
			"vendor/modules.txt":                   "# example.org/greeting v1.0.0\n## explicit; go 1.24\nexample.org/greeting\n",
			"vendor/example.org/greeting/hello.go": "package greeting\n\nfunc From(who string) string { return \"hello from \" + who }\n",
		}},
		toolchain.Node: {says: "hello from node", carry: carried.Node, files: map[string]string{
			"package.json": `{"name": "hello", "version": "1.0.0", "main": "dist/index.js", "scripts": {"build": "node build.js"},
  "dependencies": {"greeting": "file:greeting-1.0.0.tgz"}}`,
			"package-lock.json": fmt.Sprintf(`{"name": "hello", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {
  "": {"name": "hello", "version": "1.0.0", "dependencies": {"greeting": "file:greeting-1.0.0.tgz"}},
  "node_modules/greeting": {"version": "1.0.0", "resolved": "file:greeting-1.0.0.tgz", "integrity": %q}}}`, integrity),
			"greeting-1.0.0.tgz": tgz,
			"build.js":           noNetworkJS + `require("fs").mkdirSync("dist"); require("fs").writeFileSync("dist/index.js", 'console.log(require("greeting")("node"))');`,
		}},
		toolchain.Rust: {says: "hello from rust", carry: carried.Rust, files: map[string]string{
			"Cargo.toml": "[package]\nname = \"hello\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\n[dependencies]\ngreeting = \"1\"\n",
			"Cargo.lock": "version = 3\n\n[[package]]\nname = \"greeting\"\nversion = \"1.0.0\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\nchecksum = \"" + crate + "\"\n\n" +
				"[[package]]\nname = \"hello\"\nversion = \"1.0.0\"\ndependencies = [\n \"greeting\",\n]\n",
			"src/main.rs": "fn main() { println!(\"{}\", greeting::from(\"rust\")); }\n",
			"build.rs": "fn main() {\n    let devices = std::fs::read_to_string(\"/proc/net/route\").unwrap();\n" +
				"    if devices.lines().count() > 1 { panic!(\"there is a network: {}\", devices); }\n}\n",
			"vendor/greeting/Cargo.toml":           "[package]\nname = \"greeting\"\nversion = \"1.0.0\"\nedition = \"2021\"\n",
			"vendor/greeting/src/lib.rs":           "pub fn from(who: &str) -> String { assert!(!who.is_empty()); format!(\"hello from {}\", who) }\n",
			"vendor/greeting/.cargo-checksum.json": `{"files": {}, "package": "` + crate + `"}`,
		}},
		toolchain.Python: {says: "hello from python", carry: carried.Python, files: map[string]string{
			"pyproject.toml":                       "[project]\nname = \"hello\"\nversion = \"1.0\"\ndependencies = [\"greeting==1.0\"]\n\n[project.scripts]\nhello = \"hello.cli:main\"\n",
			"requirements.txt":                     "greeting==1.0 \\\n    --hash=sha256:" + hex.EncodeToString(sum256[:]) + "\n",
			"wheels/greeting-1.0-py3-none-any.whl": whl,
			"src/hello/__init__.py":                "",
			"src/hello/cli.py":                     "from greeting import greet\n\n\ndef main():\n    print(greet('python'))\n",
		}},
	}
}

func tarball(t testing.TB, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte(files[name]))
	}
	if w.Close() != nil || z.Close() != nil {
		t.Fatal("cannot pack")
	}
	return b.String()
}

func wheel(t testing.TB, name, version string, files map[string]string) string {
	t.Helper()
	info := name + "-" + version + ".dist-info/"
	files = maps.Clone(files)
	files[info+"METADATA"] = "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	files[info+"WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
	files[info+"entry_points.txt"] = "[console_scripts]\ngreet = greeting:greet\n"
	record := ""
	for _, file := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256([]byte(files[file]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", file, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[file]))
	}
	files[info+"RECORD"] = record + info + "RECORD,,\n"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		w, err := z.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte(files[file]))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// carry brings the toolchain image of a language into the registry and gives its reference.
func (r *rig) carry(s sample) string {
	r.t.Helper()
	image, err := s.carry(r.t.Context(), filepath.Join(cache(r.t), "carried"))
	if err != nil {
		r.t.Skipf("no toolchain to carry: %v", err)
	}
	if _, err := r.client.PushLayout(r.t.Context(), image.Dir, image.Reference); err != nil {
		r.t.Fatal(err)
	}
	return image.Reference
}

// writeBundle commits a sample as a module whose bundle a container starts on a base, where
// its language needs one.
func writeBundle(t testing.TB, language string, s sample, base string) *testenv.Repo {
	t.Helper()
	repo := testenv.Git(t)
	for name, text := range s.files {
		repo.Write("src/"+name, text)
	}
	artifacts, on := "", ""
	if toolchain.NeedsBase(language) {
		artifacts, on = fmt.Sprintf(`"base": {"kind": "upstream", "reference": %q}, `, base), `, "base": "base"`
	}
	repo.Write("module.json", fmt.Sprintf(`{"name": "m", "artifacts": {%s"prog": {"kind": "bundle", "path": "src"%s}},
  "resources": [{"id": "prog", "type": "container", "artifact": "prog"}]}`, artifacts, on))
	repo.Commit("a bundle of " + language)
	return repo
}

func TestS1_097_BundleOfEachLanguageIsCompiledWithoutNamingAToolchainAndRuns(t *testing.T) {
	t.Parallel()
	languages := samples(t)
	if want := toolchain.Languages(); !slices.Equal(slices.Sorted(maps.Keys(languages)), want) {
		t.Fatalf("there are samples of %v, and the languages are %v", slices.Sorted(maps.Keys(languages)), want)
	}
	for language, s := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "one", registrytest.Start(t)).withEngine()
			image := r.carry(s)
			repo := writeBundle(t, language, s, image)
			host := r.built(schema.Job{Repository: repo.URL()})
			made := host.Manifest.Artifacts["prog"]
			if got := r.start("modules/m/prog@" + made.Image); got != s.says {
				t.Errorf("its container says %q, want %q", got, s.says)
			}
			if made.Language != language || made.Toolchain == "" {
				t.Errorf("the manifest records %q, version %q", made.Language, made.Toolchain)
			}
			r.Toolchains = r.containers(map[string]string{language: image})
			contained := r.built(schema.Job{Repository: repo.URL()}).Manifest.Artifacts["prog"]
			if contained.Digest != made.Digest {
				t.Errorf("compiled on the machine it is %s, in a container %s", made.Digest, contained.Digest)
			}
			if language != toolchain.Python && contained.Toolchain != made.Toolchain { // Debian's, and whatever is on PATH
				t.Errorf("one toolchain has the versions %q and %q", made.Toolchain, contained.Toolchain)
			}
		})
	}
}

// containers are toolchains in containers of the rig's engine, by language.
func (r *rig) containers(images map[string]string) map[string]toolchain.Toolchain {
	r.t.Helper()
	found := map[string]toolchain.Toolchain{}
	for language, image := range images {
		owner := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(r.t.Name()))
		found[language] = &toolchain.Container{
			Language: language, Engine: r.Engine, Registry: r.client, Owner: owner, Image: image, Work: r.t.TempDir(),
		}
		r.t.Cleanup(func() {
			ctx := context.Background()
			_ = r.Engine.Remove(ctx, "mesh-toolchain/"+owner+":"+language)
			for _, name := range toolchain.CacheNames(language) {
				if err := r.Engine.RemoveVolume(ctx, "mesh-"+owner+"-"+language+"-"+name); err != nil {
					r.t.Error(err)
				}
			}
		})
	}
	return found
}

func TestS1_097_SeveralLanguagesWithoutLanguageAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	files := slices.Sorted(maps.Keys(toolchain.Files()))
	for i, one := range files {
		for _, other := range files[i+1:] {
			dir := "m" + fmt.Sprint(i) + strings.ToLower(strings.ReplaceAll(other, ".", ""))
			repo.Write(dir+"/module.json", `{"name": "m", "artifacts": {"prog": {"kind": "bundle", "path": "."}}}`)
			repo.Write(dir+"/"+one, "")
			repo.Write(dir+"/"+other, "")
		}
	}
	repo.Commit("two languages each")
	dirs, err := os.ReadDir(repo.Dir)
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, dir := range dirs {
		if !dir.IsDir() || strings.HasPrefix(dir.Name(), ".") {
			continue
		}
		tried++
		result := r.failed(schema.Job{Repository: repo.URL(), Path: dir.Name()}, schema.OutcomeFailed, "LanguageUnclear")
		if !strings.Contains(result.Error.Remedy, "language") {
			t.Errorf("%s: remedy %q", dir.Name(), result.Error.Remedy)
		}
	}
	if tried != len(files)*(len(files)-1)/2 {
		t.Errorf("%d pairs were tried", tried)
	}
}
