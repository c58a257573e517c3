package reconcile_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// The queues of a mesh have fixed names and all tests share one broker, so a second
// controller would take the first one's messages: tests of this package run one after
// another, each with a database of its own, and take the queues away when they end.
var databases = testenv.Template{Prepare: func(ctx context.Context, url string) error {
	pool, err := store.Open(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return catalogue.Migrate(ctx, pool)
}}

const patience = 30 * time.Second

// mesh is a controller on real servers.
type mesh struct {
	*reconcile.Controller
	t       *testing.T
	config  reconcile.Config
	pool    *store.Pool
	broker  testenv.BrokerInfo
	admin   bus.Admin
	public  ed25519.PublicKey
	nodes   []string
	stopped bool
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	broker := testenv.Broker(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, registryKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	m := &mesh{t: t, broker: broker, public: public}
	m.admin = bus.Admin{URL: broker.AdminURL, User: broker.User, Password: broker.Password}
	m.config = reconcile.Config{
		Mesh: "lab", Version: "test", Database: databases.Database(t), DeclarationKey: private,
		Broker:   bus.Config{URL: broker.URL, Fingerprints: []string{broker.Fingerprint}, Name: "controller"},
		Admin:    m.admin,
		Registry: &reconcile.Registry{URL: "https://10.0.0.1:5000", CA: "-----BEGIN CERTIFICATE-----", Fingerprint: "sha256:aa", Key: registryKey},
	}
	m.start()
	t.Cleanup(m.end)
	return m
}

func (m *mesh) start() {
	m.t.Helper()
	var err error
	m.Controller, err = reconcile.New(m.t.Context(), m.config, slog.New(slog.NewTextHandler(m.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		m.t.Fatal(err)
	}
	if err := m.Start(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	if m.pool, err = store.Open(m.t.Context(), m.config.Database); err != nil {
		m.t.Fatal(err)
	}
	m.stopped = false
	// A reply queue of a test before is bound still, so that "routed" alone does not say that
	// this controller's queues are there.
	conn := bus.Dial(m.t.Context(), m.config.Broker)
	defer conn.Close()
	until(m.t, "the controller reads its queues", func() bool {
		state, err := conn.Inspect(m.t.Context(), bus.BuildResults)
		return err == nil && state.Consumers > 0
	})
}

func (m *mesh) stop() {
	if m.stopped {
		return
	}
	m.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.Host.Stop(ctx); err != nil {
		m.t.Error(err)
	}
	m.Close()
	m.pool.Close()
}

// end stops the controller and takes the mesh's queues away.
func (m *mesh) end() {
	m.stop()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn := bus.Dial(ctx, m.config.Broker)
	defer conn.Close()
	topologies := []bus.Topology{bus.MeshTopology()}
	for _, node := range m.nodes {
		topologies = append(topologies, bus.NodeTopology(node))
	}
	for _, topology := range topologies {
		if err := bus.Undeclare(ctx, conn, topology); err != nil {
			m.t.Error(err)
		}
	}
}

func call[In, Out any](m *mesh, c api.Call[In, Out], in In) (Out, error) {
	m.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	out, err := m.Host.Invoke(ctx, extension.Caller{Name: "anna", Actions: []string{"mesh:*:*"}}, c.Group+"/"+c.Method, body)
	if err != nil {
		var zero Out
		return zero, err
	}
	return out.(Out), nil
}

func do[In, Out any](m *mesh, c api.Call[In, Out], in In) Out {
	m.t.Helper()
	out, err := call(m, c, in)
	if err != nil {
		m.t.Fatalf("%s/%s: %v", c.Group, c.Method, err)
	}
	return out
}

// refused checks a method's refusal: its code, and the words it has to say.
func refused[In, Out any](m *mesh, c api.Call[In, Out], in In, code string, words ...string) *api.Error {
	m.t.Helper()
	_, err := call(m, c, in)
	var refusal *api.Error
	if !errors.As(err, &refusal) {
		m.t.Fatalf("%s/%s was not refused: %v", c.Group, c.Method, err)
	}
	if refusal.Code != code {
		m.t.Errorf("code %s, want %s (%s)", refusal.Code, code, refusal.Message)
	}
	for _, word := range words {
		if !strings.Contains(refusal.Message+" "+refusal.Remedy, word) {
			m.t.Errorf("the refusal does not say %q: %s (%s)", word, refusal.Message, refusal.Remedy)
		}
	}
	return refusal
}

// until polls a condition with a deadline.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal("ended while waiting: " + what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// machine plays a node's host: it has the node's keys and its account.
type machine struct {
	m        *mesh
	name     string
	sealing  []byte // private
	keys     api.NodeAddIn
	conn     *bus.Conn
	sequence int64
	told     chan schema.Declaration
}

func (m *mesh) machine(name string) *machine {
	m.t.Helper()
	sealing, sealingPublic, err := pki.NewSealingKey()
	if err != nil {
		m.t.Fatal(err)
	}
	identity, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		m.t.Fatal(err)
	}
	return &machine{m: m, name: name, sealing: sealing, keys: api.NodeAddIn{
		Name: name, Address: "10.0.0." + name[1:], Identity: identity, SealingKey: sealingPublic,
	}}
}

// node adds a node whose host reports with the capabilities given.
func (m *mesh) node(name string, capabilities ...string) *machine {
	m.t.Helper()
	n := m.machine(name)
	m.nodes = append(m.nodes, name)
	do(m, api.NodeAdd, n.keys)
	n.connect()
	n.report(func(r *schema.Report) { r.Capabilities = capabilities })
	until(m.t, name+" is known", func() bool { return do(m, api.NodeShow, api.NodeRef{Node: name}).Node.State != "never-heard" })
	return n
}

func (n *machine) connect() {
	n.m.t.Helper()
	password := rand.Text()
	if err := n.m.admin.PutAccount(n.m.t.Context(), bus.NodeAccount(n.name, password)); err != nil {
		n.m.t.Fatal(err)
	}
	n.conn = n.m.dial(bus.NodeName(n.name), password)
}

func (m *mesh) dial(user, password string) *bus.Conn {
	m.t.Helper()
	conn := bus.Dial(m.t.Context(), bus.Config{
		URL: "amqps://" + user + ":" + password + "@" + m.broker.Host + "/", Fingerprints: []string{m.broker.Fingerprint}, Name: user,
		Log: slog.New(slog.DiscardHandler),
	})
	m.t.Cleanup(conn.Close)
	return conn
}

func (n *machine) report(change func(*schema.Report)) {
	n.m.t.Helper()
	n.sequence++
	report := schema.Report{
		Schema: 1, Node: n.name, Epoch: 1, Sequence: n.sequence, Resources: []schema.ResourceStatus{}, Capabilities: []string{},
		Agent: schema.Agent{Version: "test", Schema: 1, Clock: time.Now().UTC(), Platform: "linux/amd64"},
	}
	change(&report)
	n.send(n.name, report)
}

// send publishes a report under a node's key, which need not be this one's.
func (n *machine) send(key string, report schema.Report) {
	n.m.t.Helper()
	body, err := json.Marshal(report)
	if err != nil {
		n.m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(n.m.t.Context(), patience)
	defer cancel()
	n.m.publish(ctx, n.conn, bus.Message{Exchange: bus.Answers, Key: bus.KeyReport(key), Type: "report", Body: body})
}

// publish waits for the controller to have declared its queues, as every program does.
func (m *mesh) publish(ctx context.Context, conn *bus.Conn, message bus.Message) {
	m.t.Helper()
	until(m.t, "the message is routed", func() bool {
		err := conn.Publish(ctx, message)
		if err != nil && !errors.Is(err, bus.ErrUnrouted) && !errors.Is(err, bus.ErrNotFound) {
			m.t.Fatal(err)
		}
		return err == nil
	})
}

// listen takes the node's declarations from its queue, checking each signature.
func (n *machine) listen() {
	n.told = make(chan schema.Declaration, 64)
	ctx, cancel := context.WithCancel(n.m.t.Context())
	done := make(chan struct{})
	n.m.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		_ = n.conn.Consume(ctx, bus.DeclareQueue(n.name), 1, func(_ context.Context, d bus.Delivery) error {
			declaration, err := schema.ParseDeclaration("declaration", d.Body)
			if err == nil {
				err = pki.VerifyDeclaration(n.m.public, *declaration)
			}
			if err != nil {
				n.m.t.Errorf("declaration of %s: %v", n.name, err)
				return nil
			}
			n.told <- *declaration
			return nil
		})
	}()
}

// next is the next declaration the node is told.
func (n *machine) next() schema.Declaration {
	n.m.t.Helper()
	select {
	case d := <-n.told:
		return d
	case <-time.After(patience):
		n.m.t.Fatalf("%s was told nothing", n.name)
	}
	return schema.Declaration{}
}

// newer is the next declaration of a later generation: pushing again what was pushed tells
// the node the same once more.
func (n *machine) newer(than schema.Declaration) schema.Declaration {
	n.m.t.Helper()
	for {
		if d := n.next(); d.Generation > than.Generation {
			return d
		}
	}
}

// applied reports that a declaration was applied.
func (n *machine) applied(d schema.Declaration, capabilities ...string) {
	n.m.t.Helper()
	n.report(func(r *schema.Report) {
		r.Seen, r.Applied, r.AppliedHash, r.Outcome, r.Capabilities = d.Generation, d.Generation, d.Hash, "applied", capabilities
	})
	until(n.m.t, "the report is stored", func() bool {
		return do(n.m, api.NodeShow, api.NodeRef{Node: n.name}).Node.Applied == d.Generation
	})
}

// open opens the secret a declaration lands in a file.
func (n *machine) open(d schema.Declaration, id string) []byte {
	n.m.t.Helper()
	resource := find(n.m.t, d, id)
	if resource.Sealed == nil {
		n.m.t.Fatalf("%s is not sealed", id)
	}
	value, err := pki.Open(n.sealing, *resource.Sealed)
	if err != nil {
		n.m.t.Fatalf("open %s: %v", id, err)
	}
	return value
}

func find(t *testing.T, d schema.Declaration, id string) schema.Resource {
	t.Helper()
	at := slices.IndexFunc(d.Resources, func(r schema.Resource) bool { return r.ID == id })
	if at < 0 {
		t.Fatalf("no resource %s in the declaration of %s", id, d.Node)
	}
	return d.Resources[at]
}

func has(d schema.Declaration, id string) bool {
	return slices.ContainsFunc(d.Resources, func(r schema.Resource) bool { return r.ID == id })
}

const repository = "https://forge.example/modules.git"

func digest(text string) string { return schema.Digest([]byte(text)) }

// manifest is one that the strict parser takes.
func manifest(module, version string, change func(*schema.Manifest)) schema.Manifest {
	m := schema.Manifest{
		Schema: 1, Module: module, Recipe: digest("recipe"),
		Source: schema.Source{Repository: repository, Path: "modules/" + module, Ref: "refs/heads/main", Commit: hex40(module + version), Tree: hex40("tree" + module + version)},
		Artifacts: map[string]schema.Built{
			"server": {Kind: "image", Digest: digest(module + version), Size: 10, MediaType: "application/vnd.oci.image.manifest.v1+json", Platforms: []string{"linux/amd64"}},
		},
		Resources: []schema.Resource{{ID: "run", Type: "container", Image: schema.RegistryName + "/modules/" + module + "/server@" + digest(module+version)}},
	}
	if change != nil {
		change(&m)
	}
	return m
}

func hex40(text string) string { return strings.TrimPrefix(digest(text), "sha256:")[:40] }

func result(m schema.Manifest) schema.Result {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return schema.Result{
		Schema: 1, ID: rand.Text(), Outcome: schema.OutcomeBuilt, Repository: m.Source.Repository, Path: m.Source.Path, Ref: m.Source.Ref,
		Module: m.Module, Commit: m.Source.Commit, Tree: m.Source.Tree, Digest: digest("manifest" + m.Module + m.Source.Commit), Manifest: &m,
		Builder: "b", Started: now, Ended: now,
	}
}

// built makes a manifest one the mesh holds, as a recorded result does.
func (m *mesh) built(manifests ...schema.Manifest) {
	m.t.Helper()
	err := m.Host.Context().Transact(m.t.Context(), func(tx pgx.Tx) error {
		for _, one := range manifests {
			if err := builds.Adopt(m.t.Context(), tx, "test", result(one)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, node := range m.nodes {
		m.recompose(node)
	}
}

func (m *mesh) recompose(node string) {
	m.t.Helper()
	c := m.Host.Context()
	err := c.Transact(m.t.Context(), func(tx pgx.Tx) error { return c.Desired.Invalidate(m.t.Context(), tx, node) })
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mesh) plan(node string) api.NodePlan {
	m.t.Helper()
	plans := do(m, api.DeliveryPlan, api.PlanIn{Nodes: []string{node}}).Nodes
	if len(plans) != 1 {
		m.t.Fatalf("plans of %s: %v", node, plans)
	}
	return plans[0]
}

// push pushes what a plan shows now.
func (m *mesh) push(node string) api.NodePush {
	m.t.Helper()
	out := do(m, api.DeliveryPush, api.PushIn{Plans: map[string]string{node: m.plan(node).Hash}})
	return out.Nodes[0]
}

func (m *mesh) assign(module, node string) api.AssignOut {
	m.t.Helper()
	return do(m, api.AssignmentAdd, api.AssignIn{Module: module, Node: node})
}
