package reconcile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

func withSecret(name string, given bool) func(*schema.Manifest) {
	return func(m *schema.Manifest) {
		if m.OwnSecrets == nil {
			m.OwnSecrets = map[string]schema.OwnSecret{}
		}
		m.OwnSecrets[name] = schema.OwnSecret{Path: "/etc/" + m.Module + "/" + name, Given: given}
	}
}

// rejoin gives a node another machine's keys.
func (n *machine) rejoin() {
	n.m.t.Helper()
	fresh := n.m.Machine(n.Name)
	n.Sealing, n.Keys = fresh.Sealing, fresh.Keys
	n.m.Transact(func(tx pgx.Tx) error { return inventory.Rejoin(n.m.t.Context(), n.m.Host.Context(), tx, n.Keys) })
	n.Sequence = 0
	n.Report(func(*schema.Report) {})
	n.AwaitKnown()
}

// dump is the whole database as text.
func (m *mesh) dump() string {
	m.t.Helper()
	out, err := exec.Command("pg_dump", "--inserts", "--no-owner", m.Config.Database).CombinedOutput()
	if err != nil {
		m.t.Fatalf("pg_dump: %v: %s", err, out)
	}
	return string(out)
}

// absent checks that a value stands nowhere in the database, in any of the forms in which
// it could.
func (m *mesh) absent(value []byte) {
	m.t.Helper()
	dump := m.dump()
	text, err := json.Marshal(string(value))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, form := range []string{string(value), strings.Trim(string(text), `"`), fmt.Sprintf("%x", value)} {
		if strings.Contains(dump, form) {
			m.t.Errorf("the database holds %.20s… in the clear", form)
		}
	}
}

func TestS1_106_OwnSecretIsGeneratedPerNodeAndKept(t *testing.T) {
	m := newMesh(t)
	values := map[string]bool{}
	m.built(manifest("db", "1", withSecret("superuser", false)))
	for _, name := range []string{"n1", "n2", "n3"} {
		n := m.node(name)
		n.listen()
		m.assign("db", name)
		m.push(name)
		first := n.next()
		value := n.open(first, "db/secret.superuser")
		if len(value) != 43 || find(t, first, "db/secret.superuser").Path != "/etc/db/superuser" {
			t.Errorf("value of %d bytes", len(value))
		}
		values[string(value)] = true
		m.absent(value)
		n.applied(first)
		if name != "n1" {
			continue
		}
		// Kept over a push, a new manifest and a restart of the controller.
		m.built(manifest("db", "2", withSecret("superuser", false)))
		m.push("n1")
		second := n.newer(first)
		n.applied(second)
		m.Stop()
		m.Start()
		m.built(manifest("db", "3", withSecret("superuser", false)))
		m.push("n1")
		for _, d := range []schema.Declaration{second, n.next()} {
			if !bytes.Equal(n.open(d, "db/secret.superuser"), value) {
				t.Errorf("generation %d has another value", d.Generation)
			}
		}
	}
	if len(values) != 3 {
		t.Errorf("%d different values on three nodes", len(values))
	}
}

func TestS1_123_OriginDecidesAfterARejoin(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.built(
		manifest("shop", "1", func(m *schema.Manifest) { withSecret("licence", true)(m); withSecret("salt", false)(m) }),
		manifest("web", "1", withSecret("key", false)),
	)
	m.assign("shop", "n1")
	m.assign("web", "n1")
	licence := []byte("line one\nline two\n\x00canary-licence")
	do(m, api.SecretGive, api.SecretGiveIn{Module: "shop", Name: "licence", Node: "n1", Value: licence})
	m.push("n1")
	first := n.next()
	if !bytes.Equal(n.open(first, "shop/secret.licence"), licence) {
		t.Error("the value given did not arrive unchanged")
	}
	m.absent([]byte("canary-licence"))
	old := n.open(first, "web/secret.key")
	n.applied(first)

	n.rejoin()
	for range 5 {
		plan := m.plan("n1")
		if len(plan.Blocked) != 1 || plan.Blocked[0].Reason != "SecretNotUsable" || plan.Blocked[0].Module != "shop" ||
			!strings.Contains(plan.Blocked[0].Message, `"licence"`) || !strings.Contains(plan.Blocked[0].Remedy, "mesh secret give shop licence --node n1") {
			t.Fatalf("blocked %+v", plan.Blocked)
		}
		m.push("n1")
	}
	second := n.newer(first)
	if has(second, "shop/run") || bytes.Equal(n.open(second, "web/secret.key"), old) {
		t.Error("after the rejoin the generated secret must be remade and the module with the given one stay out")
	}
	for _, secret := range do(m, api.SecretList, api.None{}).Secrets {
		if usable := secret.Name != "licence"; secret.Usable != usable {
			t.Errorf("%+v", secret)
		}
	}
	do(m, api.SecretGive, api.SecretGiveIn{Module: "shop", Name: "licence", Node: "n1", Value: licence})
	m.push("n1")
	third := n.newer(second)
	if !bytes.Equal(n.open(third, "shop/secret.licence"), licence) || !has(third, "shop/run") {
		t.Error("giving it again must heal the refusal")
	}
}

func TestS1_118_ListingSaysOriginAndNoValue(t *testing.T) {
	m := newMesh(t)
	m.node("n1")
	m.built(manifest("shop", "1", func(m *schema.Manifest) { withSecret("licence", true)(m); withSecret("salt", false)(m) }))
	m.assign("shop", "n1")
	refused(m, api.SecretGive, api.SecretGiveIn{Module: "shop", Name: "salt", Node: "n1", Value: []byte("x")}, api.CodeConflict, "salt")
	refused(m, api.SecretGive, api.SecretGiveIn{Module: "shop", Name: "other", Node: "n1", Value: []byte("x")}, api.CodeNotFound, "other")
	do(m, api.SecretGive, api.SecretGiveIn{Module: "shop", Name: "licence", Node: "n1", Value: []byte("canary-value")})
	m.plan("n1")
	out := do(m, api.SecretList, api.None{})
	origins := map[string]string{}
	for _, secret := range out.Secrets {
		origins[secret.Name] = secret.Origin
	}
	if origins["licence"] != "given" || origins["salt"] != "generated" || len(origins) != 2 {
		t.Errorf("origins %v", origins)
	}
	if text, _ := json.Marshal(out); strings.Contains(string(text), "canary") {
		t.Errorf("the listing shows a value: %s", text)
	}
}

func TestS1_051_BuilderBeforeIssueIsRefusedByName(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.built(manifest("builder", "1", withSecret("broker", true)), manifest("web", "1", nil))
	m.assign("builder", "n1")
	m.assign("web", "n1")
	pushed := m.push("n1")
	if len(pushed.Blocked) != 1 || pushed.Blocked[0].Reason != "SecretNotGiven" || !strings.Contains(pushed.Blocked[0].Message, `"broker"`) ||
		pushed.Blocked[0].Remedy != "mesh builder issue --node n1" {
		t.Fatalf("blocked %+v", pushed.Blocked)
	}
	if d := n.next(); has(d, "builder/run") || !has(d, "web/run") {
		t.Error("the builder must stay out and the others go out")
	}
}

func TestS1_053_IssueMakesTheScopedAccountSealedToItsNode(t *testing.T) {
	m := newMesh(t)
	n, other := m.node("n1"), m.node("n2")
	n.listen()
	m.built(manifest("builder", "1", func(m *schema.Manifest) {
		withSecret("broker", true)(m)
		m.Requires = []schema.Requirement{{Name: "artifact-store"}}
		m.Secrets = map[string]string{"artifact-store": "/etc/builder/store.json"}
	}))
	m.assign("builder", "n1")
	out := do(m, api.BuilderIssue, api.NodeRef{Node: "n1"})
	if text, _ := json.Marshal(out); string(text) != `{"node":"n1","account":"builder.n1"}` {
		t.Errorf("issue answers %s", text)
	}
	info, err := m.Config.Admin.Account(t.Context(), "builder.n1")
	if err != nil {
		t.Fatal(err)
	}
	want := bus.BuilderAccount("n1", "-")
	if info.Configure != want.Configure || info.Read != want.Read || info.Write != want.Write || len(info.Topics) != len(want.Topics) {
		t.Errorf("account %+v, want %+v", info, want)
	}
	m.push("n1")
	d := n.next()
	var credential, store schema.Credential
	for id, into := range map[string]*schema.Credential{"builder/secret.broker": &credential, "builder/credential.artifact-store": &store} {
		if err := json.Unmarshal(n.open(d, id), into); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Open(other.Sealing, *find(t, d, id).Sealed); err == nil {
			t.Errorf("another node opens %s", id)
		}
	}
	if !strings.HasPrefix(credential.URL, "amqps://builder.n1:") || credential.Fingerprint != m.Broker.Fingerprint {
		t.Errorf("credential %s %s", credential.URL, credential.Fingerprint)
	}
	if store.URL != "https://10.0.0.1:5000" || store.Password == "" || store.Fingerprint != "sha256:aa" || store.CA == "" {
		t.Errorf("store credential %+v", store)
	}
	moved := *find(t, d, "builder/secret.broker").Sealed
	moved.Info = strings.Replace(moved.Info, "secret.broker", "secret.other", 1)
	if _, err := pki.Open(n.Sealing, moved); err == nil {
		t.Error("a sealed value opens under another field's info")
	}
	password := strings.TrimSuffix(strings.SplitN(strings.TrimPrefix(credential.URL, "amqps://builder.n1:"), "@", 2)[0], "/")
	m.absent([]byte(password))
	m.absent([]byte(store.Password))
	conn := bus.Dial(t.Context(), bus.Config{URL: credential.URL, Fingerprints: []string{credential.Fingerprint}, Name: "builder"})
	defer conn.Close()
	if err := conn.WaitReady(t.Context()); err != nil {
		t.Errorf("the issued credential does not connect: %v", err)
	}
}

func TestS1_114_CredentialBelongsToOneRelationship(t *testing.T) {
	m := newMesh(t)
	db, n := m.node("n1"), m.node("n2")
	db.listen()
	n.listen()
	consumer := func(m *schema.Manifest) {
		m.Requires = []schema.Requirement{{Name: "postgresql"}}
		m.Secrets = map[string]string{"postgresql": "/etc/" + m.Module + "/db.json"}
	}
	m.built(
		manifest("postgres", "1", func(m *schema.Manifest) {
			m.Provides = []schema.Provision{{Name: "postgresql", Scope: "mesh", Port: 5432, Grants: "/var/lib/mesh/postgres/grants"}}
		}),
		manifest("shop", "1", consumer), manifest("blog", "1", consumer),
	)
	m.assign("postgres", "n1")
	m.assign("shop", "n2")
	m.assign("blog", "n2")
	m.push("n2")
	told := n.next()
	credentials := map[string]schema.Credential{}
	for _, module := range []string{"shop", "blog"} {
		var c schema.Credential
		if err := json.Unmarshal(n.open(told, module+"/credential.postgresql"), &c); err != nil {
			t.Fatal(err)
		}
		if c.Host != "10.0.0.1" || c.Port != 5432 {
			t.Errorf("%s is sent to %s:%d", module, c.Host, c.Port)
		}
		credentials[module] = c
		m.absent([]byte(c.Password))
	}
	if credentials["shop"].Password == credentials["blog"].Password || credentials["shop"].User == credentials["blog"].User {
		t.Error("two consumers share a credential")
	}
	m.push("n1")
	provider := db.next()
	for module, c := range credentials {
		id := "postgres/grant.postgresql." + module + ".n2"
		var grant schema.Grant
		if err := json.Unmarshal(db.open(provider, id), &grant); err != nil {
			t.Fatal(err)
		}
		if grant.Password != c.Password || grant.User != c.User || grant.Consumer != module || grant.Node != "n2" || grant.Provision != "postgresql" {
			t.Errorf("grant %+v", grant)
		}
		if path := find(t, provider, id).Path; path != "/var/lib/mesh/postgres/grants/"+module+".n2.json" {
			t.Errorf("grant lands at %s", path)
		}
	}
	db.applied(provider)
	do(m, api.AssignmentRemove, api.UnassignIn{Module: "blog", Node: "n2"})
	m.push("n2")
	after := n.next()
	if has(after, "blog/credential.postgresql") || !bytes.Equal(n.open(after, "shop/credential.postgresql"), n.open(told, "shop/credential.postgresql")) {
		t.Error("unassigning one must withdraw its credential and no other")
	}
	m.plan("n1")
	until(t, "the grant is withdrawn", func() bool {
		for _, change := range m.plan("n1").Changes {
			if change.Resource == "postgres/grant.postgresql.blog.n2" && change.Action == "remove" {
				return true
			}
		}
		return false
	})
}
