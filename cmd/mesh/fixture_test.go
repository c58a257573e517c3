package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/recipe"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// A mesh's queues have fixed names and the tests share one broker: those that have a
// controller run one after another, and take the queues away when they end.
var databases = testenv.Template{Prepare: func(ctx context.Context, url string) error {
	pool, err := store.Open(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return catalogue.Migrate(ctx, pool)
}}

const (
	enough     = 30 * time.Second
	repository = "https://forge.example/modules.git"
)

// mesh is a controller on real servers that answers HTTPS on loopback, and a context file
// with which the command line finds it.
type mesh struct {
	t       *testing.T
	host    *extension.Host
	pool    *store.Pool
	admin   bus.Admin
	broker  testenv.BrokerInfo
	file    apiclient.ContextFile
	context string // path of file
	nodes   []string
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	m := &mesh{t: t, broker: testenv.Broker(t), context: filepath.Join(t.TempDir(), "context.json")}
	m.admin = bus.Admin{URL: m.broker.AdminURL, User: m.broker.User, Password: m.broker.Password}
	authority, err := pki.NewCA("lab")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := authority.Issue("controller", []string{pki.ControllerName})
	if err != nil {
		t.Fatal(err)
	}
	config := reconcile.Config{
		Mesh: "lab", Version: "test", Listen: []string{"127.0.0.1:0"}, Certificate: certificate, Key: key,
		Database: databases.Database(t), DeclarationKey: newKey(t), Admin: m.admin,
		Broker:   bus.Config{URL: m.broker.URL, Fingerprints: []string{m.broker.Fingerprint}, Name: "controller"},
		Registry: &reconcile.Registry{URL: "https://10.0.0.1:5000", CA: "-----BEGIN CERTIFICATE-----", Fingerprint: "sha256:aa", Key: newKey(t)},
	}
	address := m.serve(config)
	if m.pool, err = store.Open(t.Context(), config.Database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.pool.Close)
	m.awaitReader(bus.BuildResults)
	m.until("the controller is ready", m.host.Ready)
	m.file = apiclient.ContextFile{Mesh: "lab", URL: "https://" + address, Fingerprint: pki.Fingerprint(authority.Cert), Token: rand.Text()}
	m.transact(func(tx pgx.Tx) error { return extension.PutOperator(t.Context(), tx, "anna", m.file.Token) })
	m.save(m.file)
	return m
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// save writes the context file.
func (m *mesh) save(file apiclient.ContextFile) {
	m.t.Helper()
	text, err := json.Marshal(file)
	if err == nil {
		err = os.WriteFile(m.context, text, 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// listening hands out the address of a controller's log line that says where it listens.
type listening struct {
	slog.Handler
	address chan string
}

func (l listening) Handle(ctx context.Context, record slog.Record) error {
	if record.Message == "listening" {
		record.Attrs(func(attribute slog.Attr) bool {
			if attribute.Key == "address" {
				l.address <- attribute.Value.String()
			}
			return true
		})
	}
	return l.Handler.Handle(ctx, record)
}

// serve runs the controller as mesh-controller does, and gives its address.
func (m *mesh) serve(config reconcile.Config) string {
	m.t.Helper()
	address := make(chan string, 1)
	log := slog.New(listening{slog.NewTextHandler(m.t.Output(), nil), address})
	controller, err := reconcile.New(m.t.Context(), config, log)
	if err != nil {
		m.t.Fatal(err)
	}
	m.host = controller.Host
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.t.Context()))
	served := make(chan error, 1)
	go func() { served <- controller.Serve(ctx) }()
	m.t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			m.t.Error(err)
		}
		controller.Close()
		m.undeclare(config.Broker)
	})
	select {
	case found := <-address:
		return found
	case err := <-served:
		served <- err
		m.t.Fatalf("the controller ended: %v", err)
	case <-time.After(enough):
		m.t.Fatal("the controller does not listen")
	}
	return ""
}

// awaitReader waits until somebody reads a queue.
func (m *mesh) awaitReader(queue string) {
	m.t.Helper()
	conn := bus.Dial(m.t.Context(), bus.Config{URL: m.broker.URL, Fingerprints: []string{m.broker.Fingerprint}, Name: "test"})
	defer conn.Close()
	m.until(queue+" is read", func() bool {
		state, err := conn.Inspect(m.t.Context(), queue)
		return err == nil && state.Consumers > 0
	})
}

func (m *mesh) undeclare(config bus.Config) {
	ctx, cancel := context.WithTimeout(context.Background(), enough)
	defer cancel()
	conn := bus.Dial(ctx, config)
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

func (m *mesh) until(what string, condition func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(enough); !condition(); {
		select {
		case <-m.t.Context().Done():
			m.t.Fatal("ended while waiting: " + what)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("waited %s in vain: %s", enough, what)
		}
	}
}

func (m *mesh) transact(fn func(tx pgx.Tx) error) {
	m.t.Helper()
	if err := m.host.Context().Transact(m.t.Context(), fn); err != nil {
		m.t.Fatal(err)
	}
}

// result is what a command said and how it ended.
type result struct {
	t              *testing.T
	command        string
	code           int
	stdout, stderr string
}

// run runs a command without a terminal.
func (m *mesh) run(args ...string) result {
	m.t.Helper()
	return m.runWith(m.t.Context(), "", nil, args...)
}

// runWith runs a command with an input, and shows what it writes to stderr to heard as well.
func (m *mesh) runWith(ctx context.Context, stdin string, heard io.Writer, args ...string) result {
	m.t.Helper()
	var stdout, stderr bytes.Buffer
	complaints := io.Writer(&stderr)
	if heard != nil {
		complaints = io.MultiWriter(&stderr, heard)
	}
	code := run(ctx, args, strings.NewReader(stdin), &stdout, complaints, func(name string) string {
		if name == "MESH_CONTEXT" {
			return m.context
		}
		return ""
	})
	return result{t: m.t, command: "mesh " + strings.Join(args, " "), code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// exits checks the exit code.
func (r result) exits(want int) result {
	r.t.Helper()
	if r.code != want {
		r.t.Fatalf("%s: exit code %d, want %d\n%s\n%s", r.command, r.code, want, r.stdout, r.stderr)
	}
	return r
}

// says checks what stands in the output.
func (r result) says(words ...string) result {
	r.t.Helper()
	return r.contains("stdout", r.stdout, words)
}

// warns checks what stands in the complaints.
func (r result) warns(words ...string) result {
	r.t.Helper()
	return r.contains("stderr", r.stderr, words)
}

func (r result) contains(stream, text string, words []string) result {
	r.t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			r.t.Errorf("%s: %s does not say %q:\n%s", r.command, stream, word, text)
		}
	}
	return r
}

// lines counts the output's lines that begin so.
func (r result) lines(start string) int {
	count := 0
	for line := range strings.Lines(r.stdout) {
		if strings.HasPrefix(line, start) {
			count++
		}
	}
	return count
}

// answer reads the whole output as one JSON value.
func answer[T any](r result) T {
	r.t.Helper()
	var value T
	if err := json.Unmarshal([]byte(r.stdout), &value); err != nil {
		r.t.Fatalf("%s: %v:\n%s", r.command, err, r.stdout)
	}
	return value
}

// call calls a method as the operator, for what the command line has no command for.
func call[In, Out any](m *mesh, method api.Call[In, Out], in In) Out {
	m.t.Helper()
	client := apiclient.New(m.file)
	defer client.Close()
	ctx, cancel := context.WithTimeout(m.t.Context(), enough)
	defer cancel()
	out, err := method.Do(ctx, client, in)
	if err != nil {
		m.t.Fatalf("%s/%s: %v", method.Group, method.Method, err)
	}
	return out
}

// machine plays a node's host.
type machine struct {
	m        *mesh
	name     string
	conn     *bus.Conn
	mu       sync.Mutex
	sequence int64
}

// node adds a node whose host has reported once and is not heard of again until it listens.
func (m *mesh) node(name string) *machine {
	m.t.Helper()
	_, sealing, err := pki.NewSealingKey()
	if err != nil {
		m.t.Fatal(err)
	}
	identity := newKey(m.t).Public().(ed25519.PublicKey)
	m.nodes = append(m.nodes, name)
	call(m, api.NodeAdd, api.NodeAddIn{Name: name, Address: "10.0.0." + name[1:], Identity: identity, SealingKey: sealing})
	n := &machine{m: m, name: name, conn: m.dial(bus.NodeName(name), func(password string) bus.Account { return bus.NodeAccount(name, password) })}
	n.report(m.t.Context(), func(*schema.Report) {})
	m.until(name+" is known", func() bool { return m.state(name).State != "never-heard" })
	return n
}

func (m *mesh) state(node string) api.Node {
	m.t.Helper()
	return call(m, api.NodeShow, api.NodeRef{Node: node}).Node
}

func (m *mesh) dial(user string, account func(password string) bus.Account) *bus.Conn {
	m.t.Helper()
	password := rand.Text()
	if err := m.admin.PutAccount(m.t.Context(), account(password)); err != nil {
		m.t.Fatal(err)
	}
	conn := bus.Dial(m.t.Context(), bus.Config{
		URL: "amqps://" + user + ":" + password + "@" + m.broker.Host + "/", Fingerprints: []string{m.broker.Fingerprint}, Name: user,
		Log: slog.New(slog.DiscardHandler),
	})
	m.t.Cleanup(conn.Close)
	return conn
}

// consume reads a queue until the test ends.
func (m *mesh) consume(conn *bus.Conn, queue string, each func(context.Context, bus.Delivery)) {
	ctx, cancel := context.WithCancel(m.t.Context())
	var done sync.WaitGroup
	m.t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		_ = conn.Consume(ctx, queue, 1, func(ctx context.Context, d bus.Delivery) error {
			each(ctx, d)
			return nil
		})
	})
}

func (m *mesh) publish(ctx context.Context, conn *bus.Conn, message bus.Message, document any) {
	var err error
	if message.Body, err = json.Marshal(document); err == nil {
		err = conn.Publish(ctx, message)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		m.t.Errorf("publish %s: %v", message.Key, err)
	}
}

func (n *machine) report(ctx context.Context, change func(*schema.Report)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sequence++
	report := schema.Report{
		Schema: 1, Node: n.name, Epoch: 1, Sequence: n.sequence, Resources: []schema.ResourceStatus{}, Capabilities: []string{},
		Agent: schema.Agent{Version: "test", Schema: 1, Clock: time.Now().UTC(), Platform: "linux/amd64"},
	}
	change(&report)
	n.m.publish(ctx, n.conn, bus.Message{Exchange: bus.Answers, Key: bus.KeyReport(n.name), Type: "report"}, report)
}

// listen takes declarations and reports what apply makes of each: "" is applied, else the
// cause of its failure.
func (n *machine) listen(apply func(schema.Declaration) string) {
	n.m.consume(n.conn, bus.DeclareQueue(n.name), func(ctx context.Context, d bus.Delivery) {
		declaration, err := schema.ParseDeclaration("declaration", d.Body)
		if err != nil {
			n.m.t.Error(err)
			return
		}
		n.report(ctx, func(r *schema.Report) {
			r.Seen = declaration.Generation
			if r.Cause = apply(*declaration); r.Cause != "" {
				r.Outcome = "failed"
				return
			}
			r.Outcome, r.Applied, r.AppliedHash = "applied", declaration.Generation, declaration.Hash
		})
	})
}

func works(schema.Declaration) string { return "" }

// source records a module's source as the catalogue does.
func (m *mesh) source(module, version string) {
	m.t.Helper()
	document, err := json.Marshal(schema.Module{Name: module})
	if err == nil {
		_, err = m.pool.Exec(m.t.Context(), `
WITH repository AS (
  INSERT INTO catalogue.repositories (url, ref) VALUES ($1, '') ON CONFLICT (url) DO UPDATE SET url = excluded.url RETURNING id)
INSERT INTO catalogue.sources (module, holder, repository_id, path, commit, tree, blob, document, state, seen_at)
SELECT $2, true, id, $3, $4, $5, '', $6, 'ok', now() FROM repository
ON CONFLICT (module) WHERE holder DO UPDATE SET commit = excluded.commit, tree = excluded.tree`,
			repository, module, "modules/"+module, hex40(module+version), hex40("tree"+module+version), document)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func digest(text string) string { return schema.Digest([]byte(text)) }

func hex40(text string) string { return strings.TrimPrefix(digest(text), "sha256:")[:40] }

// built is the result of building a module of one container.
func built(module, version string, change func(*schema.Manifest)) schema.Result {
	image := digest(module + version)
	manifest := schema.Manifest{
		Schema: 1, Module: module, Recipe: recipe.For(&schema.Module{Name: module}, nil),
		Source: schema.Source{Repository: repository, Path: "modules/" + module, Ref: "refs/heads/main", Commit: hex40(module + version), Tree: hex40("tree" + module + version)},
		Artifacts: map[string]schema.Built{
			"server": {Kind: "image", Digest: image, Size: 10, MediaType: "application/vnd.oci.image.manifest.v1+json", Platforms: []string{"linux/amd64"}},
		},
		Resources: []schema.Resource{{ID: "run", Type: "container", Image: schema.RegistryName + "/modules/" + module + "/server@" + image}},
	}
	if change != nil {
		change(&manifest)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	return schema.Result{
		Schema: 1, ID: rand.Text(), Outcome: schema.OutcomeBuilt, Repository: repository, Path: manifest.Source.Path, Ref: manifest.Source.Ref,
		Module: module, Commit: manifest.Source.Commit, Tree: manifest.Source.Tree, Digest: digest("manifest" + module + version), Manifest: &manifest,
		Builder: "n1", Started: now, Ended: now, Log: "cloning " + manifest.Source.Path + "\n",
	}
}

// broken is the result of building a module that could not be.
func broken(module, version, message string) schema.Result {
	r := built(module, version, nil)
	r.Outcome, r.Digest, r.Manifest = schema.OutcomeFailed, "", nil
	r.Error = &schema.BuildError{Reason: "ToolchainFailed", Message: message, Remedy: "correct it and commit"}
	return r
}

// hold makes modules ones the mesh holds, with their sources.
func (m *mesh) hold(results ...schema.Result) {
	m.t.Helper()
	m.transact(func(tx pgx.Tx) error {
		for _, one := range results {
			if err := builds.Adopt(m.t.Context(), tx, "test", one); err != nil {
				return err
			}
		}
		c := m.host.Context()
		for _, node := range m.nodes {
			if err := c.Desired.Invalidate(m.t.Context(), tx, node); err != nil {
				return err
			}
		}
		return nil
	})
}

// builder plays a builder, which answers each job with what build makes of its module.
func (m *mesh) builder(node string, build func(module string) schema.Result) {
	m.t.Helper()
	conn := m.dial(bus.BuilderName(node), func(password string) bus.Account { return bus.BuilderAccount(node, password) })
	m.consume(conn, bus.Builds, func(ctx context.Context, d bus.Delivery) {
		job, err := schema.ParseJob("job", d.Body)
		if err != nil {
			m.t.Error(err)
			return
		}
		id := job.ID
		for _, progress := range []schema.Progress{{Phase: schema.PhaseClone}, {Phase: schema.PhaseClone, Line: "cloning " + job.Path}} {
			progress.ID, progress.Builder, progress.At = id, node, time.Now().UTC()
			m.publish(ctx, conn, bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildProgress(id), CorrelationID: id}, progress)
		}
		r := build(strings.TrimPrefix(cmp.Or(job.Path, job.Repository), "modules/"))
		r.ID = id
		m.publish(ctx, conn, bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildResult, CorrelationID: id}, r)
	})
	m.awaitReader(bus.Builds)
}
