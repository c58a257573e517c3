package e2e

import (
	"encoding/json"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/schema"
)

// document is the declaration the host has applied, as it keeps it.
func (l lab) document() map[string]any {
	l.t.Helper()
	var found map[string]any
	err := filepath.WalkDir(filepath.Join(raised.dir, "node"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".json" {
			return nil //nolint:nilerr // containers come and go beneath it
		}
		text, err := os.ReadFile(path)
		var document map[string]any
		if err == nil && json.Unmarshal(text, &document) == nil && document["signature"] != nil && document["resources"] != nil {
			found = document
		}
		return nil
	})
	if err != nil || found == nil {
		l.t.Fatalf("no declaration below the node's directory: %v", err)
	}
	return found
}

func walk(value any, visit func(key string, value any)) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			visit(key, inner)
			walk(inner, visit)
		}
	case []any:
		for _, inner := range v {
			walk(inner, visit)
		}
	}
}

func TestS1_021_NoDeclarationSaysArtifact(t *testing.T) {
	l := theMesh(t)
	keys := 0
	walk(l.document(), func(key string, _ any) {
		keys++
		if key == "artifact" {
			t.Error("the declaration has a key artifact")
		}
	})
	if keys < 50 {
		t.Errorf("a declaration of %d keys is not a whole mesh's", keys)
	}
}

func TestS1_101_NoNodeIsToldAPublicReference(t *testing.T) {
	l := theMesh(t)
	images := 0
	walk(l.document(), func(key string, value any) {
		if key != "image" {
			return
		}
		images++
		if image, ok := value.(string); !ok || !strings.HasPrefix(image, "registry.mesh/") || !strings.Contains(image, "@sha256:") {
			t.Errorf("the node is told %v", value)
		}
	})
	if images < 3 {
		t.Errorf("%d images declared, of controller, catalogue and builder", images)
	}
}

// credentials lists what the builder's container sees of the node's secrets.
func (l lab) credentials(c container) map[string]string {
	l.t.Helper()
	files := map[string]string{}
	for _, mount := range c.Mounts {
		if !strings.HasSuffix(mount.Source, "/secrets") {
			continue
		}
		entries, err := os.ReadDir(mount.Source)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, entry := range entries {
			text, err := os.ReadFile(filepath.Join(mount.Source, entry.Name()))
			if err != nil {
				l.t.Fatal(err)
			}
			files[filepath.Join(mount.Source, entry.Name())] = string(text)
		}
	}
	return files
}

// theOne is the container of a module that has one.
func (l lab) theOne(module string) container {
	l.t.Helper()
	found := l.containers(module)
	if len(found) != 1 {
		l.t.Fatalf("%d containers of %s on the node", len(found), module)
	}
	return found[0]
}

func (l lab) builder() container {
	l.t.Helper()
	return l.theOne("builder")
}

func TestS1_027_ABuilderHoldsItsOwnCredentialsAndNothingMore(t *testing.T) {
	l := theMesh(t)
	builder := l.builder()
	var targets, names []string
	for _, mount := range builder.Mounts {
		targets = append(targets, mount.Destination)
	}
	slices.Sort(targets)
	if want := []string{"/etc/mesh/builder/secrets", "/etc/ssl/certs", "/run/engine.sock", "/var/lib/mesh/builder"}; !slices.Equal(targets, want) {
		t.Errorf("its container has the mounts %v, want %v", targets, want)
	}
	seen := strings.Join(builder.Config.Env, "\n") + strings.Join(builder.Args, "\n")
	for path, text := range l.credentials(builder) {
		names = append(names, filepath.Base(path))
		seen += text
	}
	slices.Sort(names)
	for _, name := range names {
		// Its key opens the credentials of repositories that were sealed to it.
		if !slices.Contains([]string{"artifact-store.json", "broker.json", "key.json", "key"}, name) {
			t.Errorf("its container sees the secret %s", name)
		}
	}
	for _, word := range []string{"postgres://", "postgresql://", "PRIVATE KEY", "admin"} {
		if strings.Contains(seen, word) {
			t.Errorf("environment, arguments and credentials hold %q", word)
		}
	}
}

func TestS1_057_TheCredentialIsAFileOnlyItsOwnerReads(t *testing.T) {
	l := theMesh(t)
	builder := l.builder()
	var passwords []string
	for path, text := range l.credentials(builder) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 && mode != 0o400 {
			t.Errorf("%s has mode %04o", path, mode)
		}
		var credential schema.Credential
		if err := json.Unmarshal([]byte(text), &credential); err == nil && credential.Password != "" {
			passwords = append(passwords, credential.Password)
		}
	}
	_, broker := l.broker()
	passwords = append(passwords, broker)
	seen := strings.Join(slices.Concat(builder.Config.Env, builder.Args, builder.Config.Cmd), "\n")
	for _, password := range passwords {
		if len(password) < 16 {
			t.Fatalf("a password of %d characters", len(password))
		}
		if strings.Contains(seen, password) {
			t.Error("environment or arguments of the container hold a copy of a credential")
		}
	}
	if len(passwords) < 2 {
		t.Error("the artifact store's credential was not looked at")
	}
}

// broker is the builder's credential for it, and the password, which stands in the URL.
func (l lab) broker() (c schema.Credential, password string) {
	l.t.Helper()
	for path, text := range l.credentials(l.builder()) {
		if filepath.Base(path) != "broker.json" {
			continue
		}
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			l.t.Fatal(err)
		}
		u, err := url.Parse(c.URL)
		if err != nil {
			l.t.Fatal("the builder's broker.json holds no URL")
		}
		password, _ = u.User.Password()
		return c, password
	}
	l.t.Fatal("the builder has no broker.json")
	return c, ""
}

func TestS1_058_TheCredentialNamesTheScopedAccount(t *testing.T) {
	l := theMesh(t)
	credential, _ := l.broker()
	if !strings.Contains(credential.URL, "//builder."+node+":") {
		t.Errorf("the credential does not name builder.%s", node)
	}
	var builders struct {
		Builders []struct {
			Account   string
			Connected bool
		}
	}
	if err := json.Unmarshal([]byte(l.command("mesh", "builder", "ls", "-o", "json")), &builders); err != nil {
		t.Fatal(err)
	}
	if len(builders.Builders) != 1 || builders.Builders[0].Account != "builder."+node || !builders.Builders[0].Connected {
		t.Errorf("the broker's consumers: %+v", builders)
	}
}

func TestS1_060_TheFingerprintStandsBesideTheURL(t *testing.T) {
	l := theMesh(t)
	credential, _ := l.broker()
	if !strings.HasPrefix(credential.URL, "amqps://") || !strings.HasPrefix(credential.Fingerprint, "sha256:") {
		t.Errorf("fingerprint %q", credential.Fingerprint)
	}
}

// holds lists the files below a directory that contain a text.
func holds(t *testing.T, dir, text string, but ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || slices.Contains(but, path) {
			return nil //nolint:nilerr // what is gone holds nothing
		}
		content, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(content), text) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The canary is the password itself: it may stand in the one file on the node, and nowhere in
// database, registry, repositories, logs or the controller's files.
func TestS1_055_ThePlaintextIsDiscardedOnceSealed(t *testing.T) {
	l := theMesh(t)
	_, password := l.broker()
	if len(password) < 16 {
		t.Fatalf("a password of %d characters", len(password))
	}
	for _, path := range holds(t, raised.dir, password) {
		if !strings.HasSuffix(path, "/etc/mesh/builder/secrets/broker.json") {
			t.Errorf("%s holds the builder's password", path)
		}
	}
}

func TestS1_052_TheCredentialStandsInNoModuleAndNoManifest(t *testing.T) {
	l := theMesh(t)
	_, password := l.broker()
	places := []string{filepath.Join("..", "modules"), raised.repositories, filepath.Join(raised.dir, "registry")}
	for _, place := range places {
		if entries, err := os.ReadDir(place); err != nil || len(entries) == 0 {
			t.Fatalf("%s: %v, %d entries", place, err, len(entries))
		}
		if found := holds(t, place, password); len(found) > 0 {
			t.Errorf("the credential stands in %v", found)
		}
	}
	clone := filepath.Join(t.TempDir(), "mesh")
	l.command("git", "clone", "-q", filepath.Join(raised.repositories, "mesh.git"), clone)
	if found := holds(t, clone, password); len(found) > 0 {
		t.Errorf("the credential stands in %v", found)
	}
}

func TestS1_056_IssuePrintsNothingSecret(t *testing.T) {
	l := theMesh(t)
	out := l.command("mesh", "builder", "issue", "--node", node, "-y")
	l.command("mesh", "push", "--behind", "-y")
	l.until("the builder has its new credential", func() bool {
		return strings.Contains(l.command("mesh", "builder", "ls"), "taking work")
	})
	_, password := l.broker()
	if password == "" || strings.Contains(out, password) || strings.Contains(out, "amqps://") {
		t.Errorf("issue prints %q", out)
	}
}

// A node builds exactly as long as the builder module is assigned to it; nothing else is set.
func TestS1_048_ABuildNodeIsOneTheBuilderIsAssignedTo(t *testing.T) {
	l := theMesh(t)
	settings := l.settings("builder")
	taking := func() bool {
		return strings.Contains(l.command("mesh", "builder", "ls"), "taking work")
	}
	l.until("the node takes work", taking)
	l.command("mesh", "unassign", "builder", "--node", node, "-y")
	l.command("mesh", "push", node, "-y")
	l.until("no builder takes work", func() bool { return !taking() })
	if found := l.containers("builder"); len(found) != 0 {
		t.Errorf("builders left: %d", len(found))
	}
	l.command("mesh", append([]string{"assign", "builder", "--node", node}, settings...)...)
	l.command("mesh", "push", node, "-y")
	l.until("the node takes work again", taking)
}

// The broker forgets the builder's password, as one restored from an old backup does.
func TestS1_059_OnlyABuildThatCompletesProvesTheBuildersCredential(t *testing.T) {
	l := theMesh(t)
	var admin schema.Credential
	for path, text := range l.credentials(l.theOne("controller")) {
		if filepath.Base(path) == "broker-admin.json" {
			if err := json.Unmarshal([]byte(text), &admin); err != nil {
				t.Fatal(err)
			}
		}
	}
	broker := bus.Admin{URL: admin.URL, User: admin.User, Password: admin.Password}
	if err := broker.PutAccount(t.Context(), bus.BuilderAccount(node, "another-password")); err != nil {
		t.Fatal(err)
	}
	builder := l.builder()
	l.command("docker", "restart", builder.ID)
	says := func(phase string) func() bool {
		return func() bool {
			var shown api.NodeShowOut
			if err := json.Unmarshal([]byte(l.command("mesh", "node", "show", node, "-o", "json")), &shown); err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(shown.Resources, func(r schema.ResourceStatus) bool {
				return r.ID == "builder/program" && r.Phase == phase
			})
		}
	}
	l.until("the node says that the builder is failing", says(host.PhaseFailing))
	if running := l.command("docker", "inspect", "--format", "{{.State.Running}}", builder.ID); running != "true" {
		t.Errorf("its container runs: %s", running)
	}

	l.command("mesh", "builder", "issue", "--node", node)
	l.command("mesh", "push", node, "-y")
	l.until("the node says that the builder runs", says(host.PhaseRunning))
	l.script("proof")
}
