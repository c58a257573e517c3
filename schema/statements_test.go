package schema

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// refused fails unless the text is refused with exactly the lines.
func refused(t *testing.T, err error, lines ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted")
	}
	if got := err.Error(); got != strings.Join(lines, "\n") {
		t.Errorf("refused with\n%s\nwant\n%s", got, strings.Join(lines, "\n"))
	}
}

func TestS1_001_FeaturesAreRefusedAsUnknownByName(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"features", "submodules", "targets", "nodes"} {
		_, err := ParseModule("m/module.json", fmt.Appendf(nil, "{\"name\": \"web\",\n  %q: []}", field))
		if err == nil || !strings.HasPrefix(err.Error(), "m/module.json:2:3: "+field+": not a field of module.json") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestModuleThatOnlyRequiresIsValid(t *testing.T) {
	t.Parallel()
	m, err := ParseModule("module.json", []byte(`{"name": "networking", "requires": ["private-network", "name-resolution"]}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := []Requirement{{Name: "private-network"}, {Name: "name-resolution"}}; !slices.Equal(m.Requires, want) {
		t.Errorf("requires %v, want %v", m.Requires, want)
	}
}

// What is not an artifact's recipe survives into the manifest: the manifest has a field of
// the same name and type for everything in module.json but the recipes, the editor's
// $schema and the name, which it holds as "module".
func TestManifestHoldsEveryFieldOfModuleJSON(t *testing.T) {
	t.Parallel()
	manifest := make(map[string]reflect.Type)
	for field := range reflect.TypeFor[Manifest]().Fields() {
		manifest[field.Tag.Get("json")] = field.Type
	}
	for field := range reflect.TypeFor[Module]().Fields() {
		tag := field.Tag.Get("json")
		if name, _, _ := strings.Cut(tag, ","); slices.Contains([]string{"$schema", "name", "artifacts"}, name) {
			continue
		}
		if manifest[tag] != field.Type {
			t.Errorf("the manifest has no %q of type %s", tag, field.Type)
		}
	}
}

func TestArtifactPathsLeavingTheModuleAreRefused(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"../x", "/x", "..", "a/../../x", "a/..", `a\\b`} {
		for _, artifact := range []string{
			`{"kind": "archive", "path": "%s"}`, `{"kind": "bundle", "path": "%s"}`,
			`{"kind": "image", "dockerfile": "%s"}`, `{"kind": "image", "dockerfile": "D", "context": "%s"}`,
			`{"kind": "bundle", "path": ".", "package": "%s"}`,
		} {
			text := fmt.Sprintf("{\"name\": \"web\", \"artifacts\": {\n\"a\": "+artifact+"}}", path)
			if _, err := ParseModule("module.json", []byte(text)); err == nil || !strings.Contains(err.Error(), `must be a path inside the module: relative, and without ".."`) {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	for _, path := range []string{".", "a", "./a/b", "a..b", "..a/b", "a/.hidden"} {
		text := fmt.Sprintf(`{"name": "web", "artifacts": {"a": {"kind": "archive", "path": %q}}}`, path)
		if _, err := ParseModule("module.json", []byte(text)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestS1_015_ResourceNamingNoArtifactIsRefused(t *testing.T) {
	t.Parallel()
	_, err := ParseModule("module.json", []byte(`{"name": "web",
 "artifacts": {"server": {"kind": "upstream", "reference": "nginx:1"}},
 "resources": [{"id": "run", "type": "container", "artifact": "serve"}]}`))
	refused(t, err, `module.json:3:63: resources[0].artifact: resource "run" names the artifact "serve", which is not under "artifacts"; did you mean "server"?`)
}

func TestS1_017_ModuleJSONCarriesNoDigestAndNoSource(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"digest", "source", "image", "sealed"} {
		for _, kind := range resourceTypes {
			text := fmt.Sprintf("{\"name\": \"web\", \"resources\": [{\"id\": \"a\", \"type\": %q,\n%q: \"x\"}]}", kind, field)
			_, err := ParseModule("module.json", []byte(text))
			if want := fmt.Sprintf("module.json:2:1: resources[0].%s: module.json cannot carry %q", field, field); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s in a %s: %v", field, kind, err)
			}
		}
	}
}

func TestDeclarationAndManifestRefuseArtifactAtAnyDepth(t *testing.T) {
	t.Parallel()
	declaration := `{"schema": 1, "node": "n1", "epoch": 1, "generation": 1, "modules": {%s}, "resources": [], "host": {"config": {%s}, "telemetry": {}, "access": {}},
 "devices": {"assignments": [{%s}]}, "instances": [], "site": {"cacheImages": []}, "daemon": {"a": [{"b": {%s}}]}}`
	for i, path := range []string{"modules.artifact", "host.config.artifact", "devices.assignments[0].artifact", "daemon.a[0].b.artifact"} {
		inside := []any{"", "", "", ""}
		inside[i] = `"artifact": "sha256:` + strings.Repeat("0", 64) + `"`
		_, err := ParseDeclaration("declaration", fmt.Appendf(nil, declaration, inside...))
		if err == nil || !strings.Contains(err.Error(), ": "+path+`: a declaration must not carry "artifact"`) {
			t.Errorf("%s: %v", path, err)
		}
		inside[i] = `"artifact-store": "sha256:` + strings.Repeat("0", 64) + `"`
		if _, err := ParseDeclaration("declaration", fmt.Appendf(nil, declaration, inside...)); err != nil {
			t.Errorf("artifact-store is fine, and is refused: %v", err)
		}
	}
}

func TestS1_095_ArtifactIsOfOneOfFourKinds(t *testing.T) {
	t.Parallel()
	_, err := ParseModule("module.json", []byte(`{"name": "web", "artifacts": {
  "a": {"kind": "binary", "path": "x"}}}`))
	refused(t, err, `module.json:2:17: artifacts.a.kind: "binary" is no kind of artifact: it is one of image, bundle, archive or upstream`)
	m, err := ParseModule("module.json", []byte(`{"name": "web", "artifacts": {
  "a": {"kind": "image", "dockerfile": "Dockerfile"}, "b": {"kind": "bundle", "path": "b"},
  "c": {"kind": "archive", "path": "c"}, "d": {"kind": "upstream", "reference": "nginx:1"}}}`))
	if err != nil || len(m.Artifacts) != 4 {
		t.Errorf("the four kinds: %v, %v", m, err)
	}
}

func TestS1_103_UpstreamNeedsTagOrDigest(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for reference, ok := range map[string]bool{
		"postgres": false, "localhost:5000/postgres": false, "docker.io/library/postgres": false, "localhost:5000/a/b:": false,
		"postgres@sha256:12": false, "postgres:1 6": false, "": false, "localhost:5000/postgres@": false,
		"postgres:16": true, "localhost:5000/postgres:16": true, "docker.io/library/postgres:16.4": true,
		"postgres" + digest: true, "localhost:5000/postgres" + digest: true, "registry.example/a/b_c.d-e:1" + digest: true,
	} {
		text := fmt.Sprintf("{\"name\": \"web\",\n \"artifacts\": {\"db\": {\"kind\": \"upstream\", \"reference\": %q}}}", reference)
		_, err := ParseModule("module.json", []byte(text))
		if ok && err != nil || !ok && (err == nil || !strings.HasPrefix(err.Error(), "module.json:2:56: artifacts.db.reference: must be an image with a tag or a digest")) {
			t.Errorf("%q: %v, want accepted: %v", reference, err, ok)
		}
	}
}

func TestS1_112_SecretsAreKeyedByARequiredProvision(t *testing.T) {
	t.Parallel()
	_, err := ParseModule("module.json", []byte(`{"name": "web", "requires": ["postgresql"],
 "secrets": {
  "postgresql": "/etc/web/db",
  "session": "/etc/web/session"}}`))
	refused(t, err, `module.json:4:3: secrets.session: no "requires" names "session": "secrets" says where the credential of a required provision lands; a secret of the module's own goes under "own-secrets"`)
}

func TestS1_113_NeedsIsAnsweredWithItsNewName(t *testing.T) {
	t.Parallel()
	_, err := ParseModule("module.json", []byte("{\"name\": \"web\",\n  \"needs\": {\"session\": \"/etc/web/session\"}}"))
	refused(t, err, `module.json:2:3: needs: is called "own-secrets" now; rename it`)
}

func TestS1_132_ContainerWithRestartOnIsRefusedByName(t *testing.T) {
	t.Parallel()
	_, err := ParseModule("module.json", []byte(`{"name": "web", "artifacts": {"a": {"kind": "upstream", "reference": "nginx:1"}}, "resources": [
 {"id": "conf", "type": "file", "path": "/etc/web/conf", "content": ""},
 {"id": "run", "type": "container", "artifact": "a",
  "restart-on": ["conf"]}]}`))
	refused(t, err, `module.json:4:3: resources[1].restart-on: not a field of a container (services have it); did you mean "restart"?`)
	_, err = ParseDeclaration("declaration", []byte(`{"schema": 1, "node": "n1", "epoch": 1, "generation": 1, "modules": {}, "resources": [
 {"id": "web/run", "type": "container", "image": "registry.mesh/a@sha256:`+strings.Repeat("0", 64)+`", "restart-on": ["web/run"]}],
 "host": {"config": {}, "telemetry": {}, "access": {}}, "devices": {"assignments": []}, "instances": [], "site": {"cacheImages": []}}`))
	refused(t, err, `declaration:2:141: resources[0].restart-on: not a field of a container (services have it); did you mean "restart"?`)
}

// What a stranger does wrong first, each told at its place.
func TestFirstMistakesOfAStranger(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{\"name\": \"web\",\n \"colour\": \"red\"}":                                                        "module.json:2:2: colour: not a field of module.json",
		"{\"name\": \"web\",\n \"name\": \"web\"}":                                                          "module.json:2:2: name: given twice; the first is on line 1",
		"{\"name\": \"web\",\n \"needs\": {}}":                                                              "module.json:2:2: needs: is called \"own-secrets\" now; rename it",
		"{\"name\": \"web\",\n \"Requires\": []}":                                                           "module.json:2:2: Requires: not a field of module.json: names are case-sensitive, write \"requires\"",
		"{\"name\": \"web\",\n \"artifacts\": {\"a\": {\"kind\": \"upstream\", \"reference\": \"nginx\"}}}": "module.json:2:55: artifacts.a.reference: must be an image with a tag or a digest",
		"{\"name\": \"web\",\n \"artifacts\": {\"a\": {\"kind\": \"archive\", \"path\": \"../secrets\"}}}":  "module.json:2:49: artifacts.a.path: must be a path inside the module",
		"{\"name\": \"web\",\n \"artifacts\": {\"a\": {\"kind\": \"archive\", \"path\": \"\xff\"}}}":        "module.json:2:50: invalid UTF-8",
		"{\"name\": \"web\",\n \"description\": \"" + strings.Repeat("x", maxModuleBytes) + "\"}":           "module.json:2:",
		"{\"name\": \"web\"}\n\n{}":                                                                         "module.json:3:1: there is more text after the end of the document",
	} {
		if _, err := ParseModule("module.json", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\n%v\nwant %s", clip(text), err, want)
		}
	}
}
