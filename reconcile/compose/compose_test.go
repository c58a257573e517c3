package compose

import (
	"encoding/json"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

const fingerprint = "sha256:node-key"

func node(name string) Node {
	return Node{Name: name, Address: "10.0.0." + name[1:], Platform: "linux/amd64", Schema: 1, Capabilities: []string{"container-runtime"}, Fingerprint: fingerprint}
}

func manifest(module string, change func(*schema.Manifest)) Manifest {
	m := schema.Manifest{Schema: 1, Module: module, Recipe: "sha256:r"}
	if change != nil {
		change(&m)
	}
	return Manifest{Digest: "sha256:" + module, Document: m}
}

func container(id string, env map[string]string) schema.Resource {
	return schema.Resource{ID: id, Type: schema.TypeContainer, Image: "registry.mesh/x@sha256:aa", Env: env}
}

func sealed(data string) schema.Sealed {
	return schema.Sealed{Recipient: fingerprint, Info: "i", Data: []byte(data)}
}

func input(nodes []Node, assignments []Assignment, manifests ...Manifest) Input {
	mesh := Mesh{Nodes: nodes, Assignments: assignments, Manifests: map[string]Manifest{}}
	for _, m := range manifests {
		mesh.Manifests[m.Document.Module] = m
	}
	return Input{Mesh: mesh, Node: nodes[0].Name}
}

func must(t testing.TB, in Input) Output {
	t.Helper()
	out, err := Compose(in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func ids(d schema.Declaration) []string {
	var out []string
	for _, resource := range d.Resources {
		out = append(out, resource.ID)
	}
	return out
}

func find(t testing.TB, d schema.Declaration, id string) schema.Resource {
	t.Helper()
	for _, resource := range d.Resources {
		if resource.ID == id {
			return resource
		}
	}
	t.Fatalf("no resource %s in %v", id, ids(d))
	return schema.Resource{}
}

func reasons(blocked []api.Blocked) string {
	var out []string
	for _, b := range blocked {
		out = append(out, b.Module+":"+b.Reason)
	}
	return strings.Join(out, " ")
}

func TestS1_003_AssignmentTouchesNoOtherNode(t *testing.T) {
	t.Parallel()
	m := manifest("web", func(m *schema.Manifest) { m.Resources = []schema.Resource{container("web", nil)} })
	before := input([]Node{node("n1"), node("n2")}, nil, m)
	after := before
	after.Mesh.Assignments = []Assignment{{Module: "web", Node: "n1"}}
	for name, changes := range map[string]bool{"n1": true, "n2": false} {
		before.Node, after.Node = name, name
		a, b := must(t, before).Declaration.Hash, must(t, after).Declaration.Hash
		if (a != b) != changes {
			t.Errorf("%s: hash %s then %s", name, a, b)
		}
	}
}

func TestS1_005_RequiresBringsProvidersAlong(t *testing.T) {
	t.Parallel()
	provider := func(name, provision string) Manifest {
		return manifest(name, func(m *schema.Manifest) {
			m.Provides = []schema.Provision{{Name: provision, Scope: "node"}}
			m.Resources = []schema.Resource{container("run", nil)}
		})
	}
	networking := manifest("networking", func(m *schema.Manifest) {
		m.Requires = []schema.Requirement{{Name: "private-network"}, {Name: "name-resolution"}}
	})
	out := must(t, input([]Node{node("n1")}, []Assignment{{Module: "networking", Node: "n1"}},
		networking, provider("wireguard", "private-network"), provider("resolver", "name-resolution")))
	if len(out.Blocked) > 0 {
		t.Fatal(out.Blocked)
	}
	find(t, out.Declaration, "wireguard/run")
	find(t, out.Declaration, "resolver/run")
	if brought := out.Resolution.Brought(); len(brought) != 2 {
		t.Errorf("brought %v", brought)
	}
}

func TestS1_008_CapabilityMissingKeepsModuleOff(t *testing.T) {
	t.Parallel()
	m := manifest("gpu", func(m *schema.Manifest) {
		m.Capabilities = []string{"cuda"}
		m.Resources = []schema.Resource{container("run", nil)}
	})
	out := must(t, input([]Node{node("n1")}, []Assignment{{Module: "gpu", Node: "n1"}}, m))
	if reasons(out.Blocked) != "gpu:CapabilityMissing" || len(out.Declaration.Resources) != 0 {
		t.Fatalf("%v %v", out.Blocked, ids(out.Declaration))
	}
	for _, word := range []string{"cuda", "n1"} {
		if !strings.Contains(out.Blocked[0].Message, word) {
			t.Errorf("%q does not name %s", out.Blocked[0].Message, word)
		}
	}
}

func TestS1_009_ClaimIsHeldOnce(t *testing.T) {
	t.Parallel()
	claiming := func(name string) Manifest {
		return manifest(name, func(m *schema.Manifest) {
			m.Claims = []schema.Claim{{Role: "database-server"}}
			m.Resources = []schema.Resource{container("run", nil)}
		})
	}
	in := input([]Node{node("n1")}, []Assignment{{Module: "db", Node: "n1"}, {Module: "another", Node: "n1"}}, claiming("db"), claiming("another"))
	previous := Empty("n1")
	previous.Modules["db"] = "sha256:db"
	previous.Resources = []schema.Resource{container("db/run", nil)}
	in.Previous = &previous
	out := must(t, in)
	if reasons(out.Blocked) != "another:ClaimHeld" {
		t.Fatalf("the incumbent must keep its claim: %v", out.Blocked)
	}
	if !strings.Contains(out.Blocked[0].Message, "db") {
		t.Errorf("%q does not name the holder", out.Blocked[0].Message)
	}
}

func TestS1_023_LeftOverArtifactDoesNotCompose(t *testing.T) {
	t.Parallel()
	bad := manifest("bad", func(m *schema.Manifest) {
		m.Resources = []schema.Resource{{ID: "run", Type: schema.TypeContainer, Artifact: "server"}}
	})
	good := manifest("good", func(m *schema.Manifest) { m.Resources = []schema.Resource{container("run", nil)} })
	out := must(t, input([]Node{node("n1")}, []Assignment{{Module: "bad", Node: "n1"}, {Module: "good", Node: "n1"}}, bad, good))
	if reasons(out.Blocked) != "bad:ArtifactKeyword" || !strings.Contains(out.Blocked[0].Message, "run") {
		t.Fatal(out.Blocked)
	}
	if got := ids(out.Declaration); !slices.Equal(got, []string{"good/run"}) {
		t.Errorf("resources %v", got)
	}
}

func TestS1_073_BrokenModuleHoldsBackNoOther(t *testing.T) {
	t.Parallel()
	good := manifest("good", func(m *schema.Manifest) { m.Resources = []schema.Resource{container("run", nil)} })
	cases := map[string]Manifest{
		Unresolved: manifest("bad", func(m *schema.Manifest) { m.Requires = []schema.Requirement{{Name: "nowhere"}} }),
		SettingMissing: manifest("bad", func(m *schema.Manifest) {
			m.Settings = map[string]schema.Setting{"size": {Type: "integer"}}
			m.Resources = []schema.Resource{container("run", map[string]string{"SIZE": "${size}"})}
		}),
		SettingInvalid: manifest("bad", func(m *schema.Manifest) {
			m.Settings = map[string]schema.Setting{"size": {Type: "integer", Default: json.RawMessage(`"x"`)}}
		}),
		UnknownReference: manifest("bad", func(m *schema.Manifest) {
			m.Resources = []schema.Resource{container("run", map[string]string{"X": "${provision.other.host}"})}
		}),
		PlatformMissing: manifest("bad", func(m *schema.Manifest) {
			m.Artifacts = map[string]schema.Built{"x": {Platforms: []string{"linux/arm64"}}}
		}),
		SchemaTooNew: manifest("bad", func(m *schema.Manifest) { m.Schema = 2 }),
		DependencyCycle: manifest("bad", func(m *schema.Manifest) {
			a, b := container("a", nil), container("b", nil)
			a.After, b.After = []string{"b"}, []string{"a"}
			m.Resources = []schema.Resource{a, b}
		}),
		SecretNotMade: manifest("bad", func(m *schema.Manifest) { m.OwnSecrets = map[string]schema.OwnSecret{"key": {Path: "/k"}} }),
		NotBuilt:      {},
	}
	for reason, bad := range cases {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			in := input([]Node{node("n1")}, []Assignment{{Module: "bad", Node: "n1"}, {Module: "good", Node: "n1"}}, good)
			if reason != NotBuilt {
				in.Mesh.Manifests["bad"] = bad
			}
			out := must(t, in)
			if reasons(out.Blocked) != "bad:"+reason {
				t.Fatal(out.Blocked)
			}
			if got := ids(out.Declaration); !slices.Equal(got, []string{"good/run"}) {
				t.Errorf("resources %v", got)
			}
		})
	}
}

func TestBlockedModuleKeepsWhatItHad(t *testing.T) {
	t.Parallel()
	m := manifest("web", func(m *schema.Manifest) {
		m.Requires = []schema.Requirement{{Name: "gone"}}
		m.Resources = []schema.Resource{container("run", map[string]string{"V": "2"})}
	})
	in := input([]Node{node("n1")}, []Assignment{{Module: "web", Node: "n1"}}, m)
	previous := Empty("n1")
	previous.Modules["web"] = "sha256:old"
	previous.Resources = []schema.Resource{container("web/run", map[string]string{"V": "1"})}
	in.Previous = &previous
	out := must(t, in)
	if reasons(out.Blocked) != "web:Unresolved" {
		t.Fatal(out.Blocked)
	}
	if changes := Diff(&previous, &out.Declaration); len(changes) != 0 {
		t.Errorf("a module that is blocked must stay as it is, got %v", changes)
	}
	if out.Declaration.Modules["web"] != "sha256:old" {
		t.Errorf("modules %v", out.Declaration.Modules)
	}
}

func TestBindings(t *testing.T) {
	t.Parallel()
	db := func(name string) Manifest {
		return manifest(name, func(m *schema.Manifest) {
			m.Provides = []schema.Provision{{Name: "postgresql", Scope: "mesh", Port: 5432, Grants: "/g"}}
		})
	}
	app := manifest("app", func(m *schema.Manifest) {
		m.Requires = []schema.Requirement{{Name: "postgresql"}}
		m.Resources = []schema.Resource{container("run", map[string]string{"DB": "${provision.postgresql.host}:${provision.postgresql.port}"})}
	})
	nodes := []Node{node("n1"), node("n2"), node("n3")}
	one := []Assignment{{Module: "app", Node: "n1"}, {Module: "db", Node: "n2"}}
	out := must(t, input(nodes, one, app, db("db")))
	if len(out.Blocked) > 0 {
		t.Fatal(out.Blocked)
	}
	if got := find(t, out.Declaration, "app/run").Env["DB"]; got != "10.0.0.2:5432" {
		t.Errorf("DB is %q", got)
	}
	two := append(slices.Clone(one), Assignment{Module: "db", Node: "n3"})
	out = must(t, input(nodes, two, app, db("db")))
	if reasons(out.Blocked) != "app:Ambiguous" || !strings.Contains(out.Blocked[0].Message, "db@n2, db@n3") {
		t.Fatal(out.Blocked)
	}
	two[0].Bindings = map[string]string{"postgresql": "db@n3"}
	out = must(t, input(nodes, two, app, db("db")))
	if got := find(t, out.Declaration, "app/run").Env["DB"]; got != "10.0.0.3:5432" {
		t.Errorf("DB is %q", got)
	}
	two[0].Bindings = map[string]string{"postgresql": "db@n1"}
	if out = must(t, input(nodes, two, app, db("db"), db("other"))); len(out.Blocked) > 0 {
		t.Errorf("a bound provider of the same node is brought along: %v", out.Blocked)
	}
}

func TestS1_140_ArtifactStoreComesFromTheFoundation(t *testing.T) {
	t.Parallel()
	builder := manifest("builder", func(m *schema.Manifest) {
		m.Requires = []schema.Requirement{{Name: "artifact-store"}}
		m.Secrets = map[string]string{"artifact-store": "/etc/store.json"}
		m.Resources = []schema.Resource{container("run", map[string]string{"STORE": "${provision.artifact-store.host}"})}
	})
	in := input([]Node{node("n1")}, []Assignment{{Module: "builder", Node: "n1"}}, builder)
	if out := must(t, in); reasons(out.Blocked) != "builder:Unresolved" || !strings.Contains(out.Blocked[0].Message, "artifact-store") {
		t.Fatal(out.Blocked)
	}
	in.Mesh.BuiltIn = []BuiltIn{{Provision: "artifact-store", Host: "10.0.0.9", Port: 5000}}
	if out := must(t, in); reasons(out.Blocked) != "builder:SecretNotMade" {
		t.Fatal(out.Blocked)
	}
	in.Credentials = []Credential{{Consumer: "builder", Provision: "artifact-store", Provider: FoundationModule, Sealed: sealed("c")}}
	in.ArtifactStore = &schema.ArtifactStore{URL: "https://10.0.0.9:5000"}
	out := must(t, in)
	if len(out.Blocked) > 0 {
		t.Fatal(out.Blocked)
	}
	if got := find(t, out.Declaration, "builder/run").Env["STORE"]; got != "10.0.0.9" {
		t.Errorf("STORE is %q", got)
	}
	if file := find(t, out.Declaration, "builder/credential.artifact-store"); file.Path != "/etc/store.json" || file.Mode != "0400" || file.Sealed == nil {
		t.Errorf("credential %+v", file)
	}
	if len(out.Declaration.Host.Config[schema.ConfigArtifactStore]) == 0 {
		t.Error("the host is not told where the registry is")
	}
}

func TestS1_111_SecretDeclaredAndNotMadeIsRefused(t *testing.T) {
	t.Parallel()
	m := manifest("db", func(m *schema.Manifest) {
		m.OwnSecrets = map[string]schema.OwnSecret{"superuser": {Path: "/etc/db/superuser"}}
		m.Resources = []schema.Resource{container("run", nil)}
	})
	in := input([]Node{node("n1")}, []Assignment{{Module: "db", Node: "n1"}}, m)
	out := must(t, in)
	if reasons(out.Blocked) != "db:SecretNotMade" || !strings.Contains(out.Blocked[0].Message, `"superuser"`) || len(out.Declaration.Resources) > 0 {
		t.Fatalf("%v %v", out.Blocked, ids(out.Declaration))
	}
	in.Secrets = []Secret{{Module: "db", Name: "superuser", Sealed: sealed("s")}}
	out = must(t, in)
	if len(out.Blocked) > 0 {
		t.Fatal(out.Blocked)
	}
	if file := find(t, out.Declaration, "db/secret.superuser"); file.Path != "/etc/db/superuser" || file.Mode != "0400" {
		t.Errorf("%+v", file)
	}
	if run := find(t, out.Declaration, "db/run"); !slices.Contains(run.After, "db/secret.superuser") {
		t.Errorf("the program must wait for its secret: %v", run.After)
	}
}

func TestS1_120_RefusalNamesSecretAndRemedy(t *testing.T) {
	t.Parallel()
	m := manifest("shop", func(m *schema.Manifest) {
		m.OwnSecrets = map[string]schema.OwnSecret{"licence": {Path: "/l", Given: true}}
	})
	in := input([]Node{node("n1")}, []Assignment{{Module: "shop", Node: "n1"}}, m)
	in.Secrets = []Secret{{Module: "shop", Name: "licence", Given: true, Sealed: schema.Sealed{Recipient: "sha256:older"}}}
	out := must(t, in)
	if reasons(out.Blocked) != "shop:SecretNotUsable" || !strings.Contains(out.Blocked[0].Message, "licence") ||
		out.Blocked[0].Remedy != "mesh secret give shop licence --node n1" {
		t.Fatal(out.Blocked)
	}
}

func TestS1_124_GivenSecretNeverGivenIsRefusedByName(t *testing.T) {
	t.Parallel()
	m := manifest("shop", func(m *schema.Manifest) {
		m.OwnSecrets = map[string]schema.OwnSecret{"licence": {Path: "/l", Given: true}}
	})
	good := manifest("good", func(m *schema.Manifest) { m.Resources = []schema.Resource{container("run", nil)} })
	in := input([]Node{node("n1")}, []Assignment{{Module: "shop", Node: "n1"}, {Module: "good", Node: "n1"}}, m, good)
	in.Secrets = []Secret{{Module: "shop", Name: "licence", Sealed: sealed("generated")}}
	out := must(t, in)
	if reasons(out.Blocked) != "shop:SecretNotGiven" || !strings.Contains(out.Blocked[0].Message, `"licence"`) {
		t.Fatal(out.Blocked)
	}
	find(t, out.Declaration, "good/run")
}

func TestS1_115_OwnSecretReachesNoOtherModule(t *testing.T) {
	t.Parallel()
	db := manifest("db", func(m *schema.Manifest) { m.OwnSecrets = map[string]schema.OwnSecret{"superuser": {Path: "/s"}} })
	thief := manifest("thief", func(m *schema.Manifest) {
		m.Resources = []schema.Resource{container("run", map[string]string{"P": "${secret.superuser.path}"})}
	})
	in := input([]Node{node("n1")}, []Assignment{{Module: "db", Node: "n1"}, {Module: "thief", Node: "n1"}}, db, thief)
	in.Secrets = []Secret{{Module: "db", Name: "superuser", Sealed: sealed("s")}}
	if out := must(t, in); reasons(out.Blocked) != "thief:UnknownReference" {
		t.Fatal(out.Blocked)
	}
}

func TestPathsHaveOneOwner(t *testing.T) {
	t.Parallel()
	one := manifest("one", func(m *schema.Manifest) {
		m.Resources = []schema.Resource{{ID: "a", Type: schema.TypeArchive, Path: "/etc/one", Digest: "sha256:x"}}
	})
	content := "x"
	two := manifest("two", func(m *schema.Manifest) {
		m.Resources = []schema.Resource{{ID: "f", Type: schema.TypeFile, Path: "/etc/one/sub/f", Content: &content}}
	})
	out := must(t, input([]Node{node("n1")}, []Assignment{{Module: "one", Node: "n1"}, {Module: "two", Node: "n1"}}, one, two))
	if reasons(out.Blocked) != "two:PathConflict" || !strings.Contains(out.Blocked[0].Message, "one/a") {
		t.Fatal(out.Blocked)
	}
}

func TestOrderFollowsDependencies(t *testing.T) {
	t.Parallel()
	content := "x"
	run := container("a-run", nil)
	run.After = []string{"z-config"}
	m := manifest("m", func(m *schema.Manifest) {
		m.Resources = []schema.Resource{run,
			{ID: "z-config", Type: schema.TypeFile, Path: "/d/sub/f", Content: &content},
			{ID: "zz-dir", Type: schema.TypeDirectory, Path: "/d"}}
	})
	out := must(t, input([]Node{node("n1")}, []Assignment{{Module: "m", Node: "n1"}}, m))
	if got := ids(out.Declaration); !slices.Equal(got, []string{"m/zz-dir", "m/z-config", "m/a-run"}) {
		t.Errorf("order %v", got)
	}
}

func TestDiffMasksSecrets(t *testing.T) {
	t.Parallel()
	a, b := Empty("n1"), Empty("n1")
	one, two := sealed("one-canary"), sealed("two-canary")
	x, y := "x-canary", "y-canary"
	a.Resources = []schema.Resource{{ID: "m/s", Type: "file", Path: "/s", Sealed: &one}, {ID: "m/c", Type: "file", Path: "/c", Content: &x}, container("m/gone", nil), container("m/run", map[string]string{"P": "a-canary"})}
	b.Resources = []schema.Resource{{ID: "m/s", Type: "file", Path: "/s", Sealed: &two}, {ID: "m/c", Type: "file", Path: "/c", Content: &y}, container("m/run", map[string]string{"P": "b-canary"}), container("m/new", nil)}
	changes := Diff(&a, &b)
	text, _ := json.Marshal(changes)
	if strings.Contains(string(text), "canary") {
		t.Errorf("a secret or content shows: %s", text)
	}
	var actions []string
	for _, change := range changes {
		actions = append(actions, change.Action+" "+change.Resource)
	}
	want := []string{"update m/s", "update m/c", "recreate m/run", "create m/new", "remove m/gone"}
	if !slices.Equal(actions, want) {
		t.Errorf("got %v, want %v", actions, want)
	}
	if changes := Diff(&b, &b); len(changes) != 0 {
		t.Errorf("no difference gave %v", changes)
	}
}

// A mesh drawn at random, with conflicts, gaps and cycles in it.
func drawn(t *rapid.T) Input {
	provisions := []string{"p", "q", "r"}
	nodes := []Node{node("n1"), node("n2"), node("n3")}
	in := Input{Node: "n1", Mesh: Mesh{Nodes: nodes, Manifests: map[string]Manifest{}}}
	for _, module := range []string{"a", "b", "c", "d", "e"} {
		if rapid.Bool().Draw(t, "built") {
			in.Mesh.Manifests[module] = manifest(module, func(m *schema.Manifest) {
				for _, provision := range provisions {
					switch rapid.IntRange(0, 5).Draw(t, "relation") {
					case 0:
						m.Provides = append(m.Provides, schema.Provision{Name: provision, Scope: rapid.SampledFrom([]string{"node", "mesh"}).Draw(t, "scope"), Port: 1})
					case 1:
						m.Requires = append(m.Requires, schema.Requirement{Name: provision, Optional: rapid.Bool().Draw(t, "optional")})
					}
				}
				m.OwnSecrets = map[string]schema.OwnSecret{"s": {Path: "/" + module + "/s"}, "t": {Path: "/" + module + "/t"}}
				m.Claims = []schema.Claim{{Role: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "claim")}}
				m.Resources = []schema.Resource{
					container("run", map[string]string{"A": "${node.address}"}),
					{ID: "dir", Type: schema.TypeDirectory, Path: rapid.SampledFrom([]string{"/one", "/two", "/three"}).Draw(t, "path")},
				}
			})
		}
		for _, n := range nodes {
			if rapid.Bool().Draw(t, "assigned") {
				in.Mesh.Assignments = append(in.Mesh.Assignments, Assignment{Module: module, Node: n.Name})
			}
		}
		for _, name := range []string{"s", "t"} {
			if rapid.IntRange(0, 4).Draw(t, "made") > 0 {
				in.Secrets = append(in.Secrets, Secret{Module: module, Name: name, Sealed: sealed(module + name)})
			}
		}
	}
	return in
}

func TestSameInputsInAnyOrderGiveTheSameHash(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawn(t)
		want, err := Compose(in)
		if err != nil {
			t.Fatal(err)
		}
		source := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		shuffled := in
		shuffled.Mesh.Assignments = slices.Clone(in.Mesh.Assignments)
		shuffled.Mesh.Nodes = slices.Clone(in.Mesh.Nodes)
		shuffled.Secrets = slices.Clone(in.Secrets)
		source.Shuffle(len(shuffled.Mesh.Assignments), func(i, j int) {
			a := shuffled.Mesh.Assignments
			a[i], a[j] = a[j], a[i]
		})
		source.Shuffle(len(shuffled.Mesh.Nodes), func(i, j int) {
			a := shuffled.Mesh.Nodes
			a[i], a[j] = a[j], a[i]
		})
		source.Shuffle(len(shuffled.Secrets), func(i, j int) { a := shuffled.Secrets; a[i], a[j] = a[j], a[i] })
		shuffled.Mesh.Manifests = map[string]Manifest{}
		for name, m := range in.Mesh.Manifests {
			m.Document.Resources = slices.Clone(m.Document.Resources)
			slices.Reverse(m.Document.Resources)
			shuffled.Mesh.Manifests[name] = m
		}
		got, err := Compose(shuffled)
		if err != nil {
			t.Fatal(err)
		}
		if got.Declaration.Hash != want.Declaration.Hash {
			t.Fatalf("hash %s, then %s", want.Declaration.Hash, got.Declaration.Hash)
		}
		if reasons(got.Blocked) != reasons(want.Blocked) {
			t.Fatalf("blocked %v, then %v", want.Blocked, got.Blocked)
		}
	})
}

// S2-196's half that composition holds: what was pushed composes to the same hash again.
func TestComposingAgainAfterAPushChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawn(t)
		first, err := Compose(in)
		if err != nil {
			t.Fatal(err)
		}
		pushed := first.Declaration
		pushed.Epoch, pushed.Generation, pushed.Signature = 1, 7, []byte("s")
		in.Previous = &pushed
		again, err := Compose(in)
		if err != nil {
			t.Fatal(err)
		}
		if again.Declaration.Hash != first.Declaration.Hash {
			t.Fatalf("hash %s, after the push %s: %v", first.Declaration.Hash, again.Declaration.Hash, Diff(&pushed, &again.Declaration))
		}
	})
}
