package toolchain_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/toolchain"
)

func entries(files map[string]string) []archive.Entry {
	var all []archive.Entry
	for name, text := range files {
		all = append(all, archive.Entry{Name: name, Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(text)), nil
		}})
	}
	return all
}

// host is the machine's toolchain with caches of the test.
func host(t *testing.T, language string) toolchain.Host {
	t.Helper()
	program, err := toolchain.Find(t.Context(), language)
	if errors.Is(err, toolchain.ErrNotInstalled) {
		t.Skipf("%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	caches := map[string]string{}
	for _, name := range toolchain.CacheNames(language) {
		caches[name] = filepath.Join(t.TempDir(), name)
	}
	return toolchain.Host{Language: language, Program: program, Caches: caches}
}

func TestWhatNothingPinsIsRefusedBeforeAnythingIsFetched(t *testing.T) {
	t.Parallel()
	lock := func(entry string) map[string]string {
		return map[string]string{
			"package.json":      `{"dependencies": {"a": "1"}}`,
			"package-lock.json": `{"lockfileVersion": 3, "packages": {"": {}, "node_modules/a": {` + entry + `}}}`,
		}
	}
	python := func(requirements string) map[string]string {
		return map[string]string{"pyproject.toml": "[project]\ndependencies = [\"a\"]\n", "requirements.txt": requirements}
	}
	cases := []struct {
		name, language string
		files          map[string]string
		names          string // what the message must name
	}{
		{"no package-lock.json", toolchain.Node, map[string]string{"package.json": `{"devDependencies": {"left-pad": "1"}}`}, "left-pad"},
		{"lock of npm 6", toolchain.Node, map[string]string{"package.json": `{}`, "package-lock.json": `{"lockfileVersion": 1}`}, "version 1"},
		{"git dependency", toolchain.Node, lock(`"resolved": "git+ssh://git@example.org/a.git#0123"`), "node_modules/a"},
		{"SHA-1 alone", toolchain.Node, lock(`"integrity": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="`), "node_modules/a"},
		{"no Cargo.lock", toolchain.Rust, map[string]string{"Cargo.toml": "[package]\nname = \"a\"\n"}, "Cargo.lock"},
		{"no requirements.txt", toolchain.Python, map[string]string{"pyproject.toml": "[project]\ndependencies = [\"flask>=2\"]\n"}, "flask>=2"},
		{"range", toolchain.Python, python("a>=1 --hash=sha256:00\n"), "requirements.txt:1"},
		{"any of a version", toolchain.Python, python("# pins\na==1.* --hash=sha256:00\n"), "requirements.txt:2"},
		{"another index", toolchain.Python, python("--index-url https://example.org\na==1 --hash=sha256:00\n"), "--index-url"},
		{"from a path", toolchain.Python, python("-e .\n"), "-e ."},
		{"from a URL", toolchain.Python, python("a @ https://example.org/a.whl --hash=sha256:00\n"), "https://example.org/a.whl"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := toolchain.Host{Language: c.language, Program: "/nonexistent/program"}
			_, err := h.Compile(t.Context(), toolchain.Compilation{Source: entries(c.files), Scratch: t.TempDir(), Limit: 1 << 20, Log: func(string) {}})
			var failure *toolchain.Error
			if !errors.As(err, &failure) || failure.Reason != toolchain.ReasonNotLocked || failure.Remedy == "" {
				t.Fatalf("%v", err)
			}
			if !strings.Contains(err.Error(), c.names) {
				t.Errorf("%q does not name %s", err, c.names)
			}
		})
	}
}

func TestCodeOfAModuleRunsOnTheMachineOnlyWhereItIsTrusted(t *testing.T) {
	t.Parallel()
	for language, files := range map[string]map[string]string{
		toolchain.Node: {"package.json": `{"scripts": {"build": "touch $HOME/../../ran"}}`, "index.js": ""},
		toolchain.Rust: {"Cargo.toml": "[package]\nname = \"a\"\nversion = \"1.0.0\"\n", "Cargo.lock": "version = 3\n", "src/main.rs": "fn main() {}", "build.rs": "fn main() {}"},
	} {
		h := host(t, language)
		_, err := h.Compile(t.Context(), toolchain.Compilation{Source: entries(files), Scratch: t.TempDir(), Limit: 1 << 20, Log: func(string) {}})
		var failure *toolchain.Error
		if !errors.As(err, &failure) || failure.Reason != toolchain.ReasonUntrusted || !failure.Refused {
			t.Errorf("%s: %v", language, err)
		}
	}
}

// A package without dependencies and build is packed as it stands; nothing runs.
func TestPureSourceTakesNoStep(t *testing.T) {
	t.Parallel()
	for language, c := range map[string]struct {
		files map[string]string
		want  []string
		start []string
	}{
		toolchain.Node: {
			map[string]string{"package.json": `{"bin": {"x": "./bin/x.js"}}`, "bin/x.js": "1"},
			[]string{"app/bin/x.js", "app/package.json"}, []string{"node", "/app/bin/x.js"},
		},
		toolchain.Python: {
			map[string]string{"pyproject.toml": "[project.scripts]\nx = \"x.y:main\"\n", "x/y.py": "1"},
			[]string{"app/__main__.py", "app/pyproject.toml", "app/x/y.py"}, []string{"python3", "/app"},
		},
	} {
		h := toolchain.Host{Language: language, Program: "/nonexistent/program"}
		product, err := h.Compile(t.Context(), toolchain.Compilation{Source: entries(c.files), Scratch: t.TempDir(), Limit: 1 << 20})
		if err != nil {
			t.Errorf("%s: %v", language, err)
			continue
		}
		var names []string
		for _, e := range product.Entries {
			names = append(names, e.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, c.want) || !slices.Equal(product.Entrypoint, c.start) {
			t.Errorf("%s: holds %v and starts %v", language, names, product.Entrypoint)
		}
	}
}

// What starts a bundle must be clear, or said to be unclear.
func TestUnclearStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		language string
		files    map[string]string
	}{
		"several bins":    {toolchain.Node, map[string]string{"package.json": `{"bin": {"x": "x.js", "y": "y.js"}}`}},
		"nothing":         {toolchain.Node, map[string]string{"package.json": `{}`, "lib.js": ""}},
		"several scripts": {toolchain.Python, map[string]string{"pyproject.toml": "[project.scripts]\nx = \"x:x\"\ny = \"y:y\"\n"}},
		"a library":       {toolchain.Python, map[string]string{"pyproject.toml": "", "x.py": ""}},
	} {
		h := toolchain.Host{Language: c.language, Program: "/nonexistent/program"}
		product, err := h.Compile(t.Context(), toolchain.Compilation{Source: entries(c.files), Scratch: t.TempDir(), Limit: 1 << 20})
		if err != nil || product.Entrypoint != nil || product.Unclear == "" {
			t.Errorf("%s: starts %v, unclear %q: %v", name, product.Entrypoint, product.Unclear, err)
		}
	}
}

func TestAskingForTheVersionWritesIntoNoHome(t *testing.T) {
	programs := map[string]string{}
	for _, language := range toolchain.Languages() {
		if program, err := toolchain.Find(t.Context(), language); err == nil {
			programs[language] = program
		}
	}
	if programs[toolchain.Go] == "" {
		t.Fatal("these tests run without Go")
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	before, _ := filepath.Glob("/nonexistent/*")
	for language, program := range programs {
		h := toolchain.Host{Language: language, Program: program}
		if version, err := h.Version(t.Context()); err != nil || version == "" {
			t.Errorf("%s: version %q: %v", language, version, err)
		}
	}
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("left in the home directory: %v %v", left, err)
	}
	if after, _ := filepath.Glob("/nonexistent/*"); len(after) > len(before) {
		t.Errorf("left %v", after)
	}
}
