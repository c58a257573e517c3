// Package reconciletest runs a mesh's controller on real servers for tests, and plays those
// round it: the catalogue, by what it records; builders and hosts, by what they say.
//
// A mesh's queues have fixed names and the tests of a binary share one broker, where a second
// controller would take the first one's messages: tests that have a mesh run one after
// another. Each has a database of its own, and takes its queues away when it ends.
package reconciletest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// Patience bounds every wait.
const Patience = 30 * time.Second

var databases = testenv.Migrated(catalogue.Migrate)

// Mesh is a controller on real servers. Its methods can be called while it runs.
type Mesh struct {
	*reconcile.Controller
	T      *testing.T
	Config reconcile.Config
	Broker testenv.BrokerInfo
	Pool   *store.Pool    // of the controller's database, as its owner
	Logged testenv.Buffer // what the controller logged
	nodes  []string
	stop   func()
}

// New starts a controller, which ends with the test.
func New(t *testing.T) *Mesh {
	t.Helper()
	broker := testenv.Broker(t)
	m := &Mesh{T: t, Broker: broker, Config: reconcile.Config{
		Mesh: "lab", Version: "test", Database: databases.Database(t), DeclarationKey: Key(t),
		Broker:   bus.Config{URL: broker.URL, Fingerprints: []string{broker.Fingerprint}, Name: "controller"},
		Admin:    bus.Admin{URL: broker.AdminURL, User: broker.User, Password: broker.Password},
		Registry: &reconcile.Registry{URL: "https://10.0.0.1:5000", CA: "-----BEGIN CERTIFICATE-----", Fingerprint: "sha256:aa", Key: Key(t)},
	}}
	m.Start()
	t.Cleanup(func() {
		m.Stop()
		m.undeclare()
	})
	return m
}

// Key is a fresh signing key.
func Key(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Start starts the controller, and returns when it reads its queues.
func (m *Mesh) Start() {
	m.T.Helper()
	log := slog.New(slog.NewTextHandler(io.MultiWriter(m.T.Output(), &m.Logged), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	if m.Controller, err = reconcile.New(m.T.Context(), m.Config, log); err != nil {
		m.T.Fatal(err)
	}
	if err := m.Controller.Start(m.T.Context()); err != nil {
		m.T.Fatal(err)
	}
	if m.Pool, err = store.Open(m.T.Context(), m.Config.Database); err != nil {
		m.T.Fatal(err)
	}
	m.CatalogueSpeaks()
	m.stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := m.Host.Stop(ctx); err != nil {
			m.T.Error(err)
		}
		m.Close()
		m.Pool.Close()
	}
	// A reply queue of a test before is bound still, so that "routed" alone does not say that
	// this controller's queues are there.
	m.AwaitReader(bus.BuildResults)
}

// Stop ends the controller; its database and its queues stay, for [Mesh.Start].
func (m *Mesh) Stop() {
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
}

func (m *Mesh) undeclare() {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn := bus.Dial(ctx, m.Config.Broker)
	defer conn.Close()
	topologies := []bus.Topology{bus.MeshTopology()}
	for _, node := range m.nodes {
		topologies = append(topologies, bus.NodeTopology(node))
	}
	for _, topology := range topologies {
		if err := bus.Undeclare(ctx, conn, topology); err != nil {
			m.T.Error(err)
		}
	}
}

// Post calls a method as an operator who may do everything: a Mesh is an [api.Caller].
func (m *Mesh) Post(ctx context.Context, path string, body []byte) ([]byte, error) {
	caller := extension.Caller{Name: "anna", Actions: []string{"mesh:*:*"}}
	out, err := m.Host.Invoke(ctx, caller, strings.TrimPrefix(path, "/api/mesh/"), body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(out)
}

// Do calls a method that has to succeed.
func Do[In, Out any](m *Mesh, c api.Call[In, Out], in In) Out {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(m.T.Context(), Patience)
	defer cancel()
	out, err := c.Do(ctx, m, in)
	if err != nil {
		m.T.Fatalf("%s/%s: %v", c.Group, c.Method, err)
	}
	return out
}

// Transact runs fn in one transaction of the controller's.
func (m *Mesh) Transact(fn func(tx pgx.Tx) error) {
	m.T.Helper()
	if err := m.Host.Context().Transact(m.T.Context(), fn); err != nil {
		m.T.Fatal(err)
	}
}

// Recompose has the declarations of nodes composed anew.
func (m *Mesh) Recompose(nodes ...string) {
	m.T.Helper()
	m.Transact(func(tx pgx.Tx) error { return m.invalidate(tx, nodes) })
}

func (m *Mesh) invalidate(tx pgx.Tx, nodes []string) error {
	for _, node := range nodes {
		if err := m.Host.Context().Desired.Invalidate(m.T.Context(), tx, node); err != nil {
			return err
		}
	}
	return nil
}

// Node is what the controller knows of a node.
func (m *Mesh) Node(name string) api.Node {
	m.T.Helper()
	return Do(m, api.NodeShow, api.NodeRef{Node: name}).Node
}

// AdminConn connects to the broker as its administrator.
func (m *Mesh) AdminConn() *bus.Conn {
	conn := bus.Dial(m.T.Context(), m.Config.Broker)
	m.T.Cleanup(conn.Close)
	return conn
}

// Dial makes an account for a node, and connects with it.
func (m *Mesh) Dial(node string, account func(node, password string) bus.Account) *bus.Conn {
	m.T.Helper()
	password := rand.Text()
	made := account(node, password)
	if err := m.Config.Admin.PutAccount(m.T.Context(), made); err != nil {
		m.T.Fatal(err)
	}
	conn := bus.Dial(m.T.Context(), bus.Config{
		URL: "amqps://" + made.Name + ":" + password + "@" + m.Broker.Host + "/", Fingerprints: []string{m.Broker.Fingerprint}, Name: made.Name,
		Log: slog.New(slog.DiscardHandler),
	})
	m.T.Cleanup(conn.Close)
	return conn
}

// Publish sends a document. It waits for the controller to have declared its queues, as every
// program does, and may be called from any goroutine.
func (m *Mesh) Publish(conn *bus.Conn, message bus.Message, document any) {
	ctx, cancel := context.WithTimeout(m.T.Context(), Patience)
	defer cancel()
	var err error
	if message.Body, err = json.Marshal(document); err != nil {
		m.T.Error(err)
		return
	}
	for {
		err := conn.Publish(ctx, message)
		switch {
		case err == nil, m.T.Context().Err() != nil:
			return
		case !errors.Is(err, bus.ErrUnrouted) && !errors.Is(err, bus.ErrNotFound):
			m.T.Errorf("publish %s: %v", message.Key, err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// consume reads a queue until the test ends.
func (m *Mesh) consume(conn *bus.Conn, queue string, each func(bus.Delivery)) {
	ctx, cancel := context.WithCancel(m.T.Context())
	ended := make(chan struct{})
	m.T.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		_ = conn.Consume(ctx, queue, 1, func(_ context.Context, d bus.Delivery) error {
			each(d)
			return nil
		})
	}()
}

// AwaitReader waits until somebody reads a queue.
func (m *Mesh) AwaitReader(queue string) {
	m.T.Helper()
	conn := bus.Dial(m.T.Context(), m.Config.Broker)
	defer conn.Close()
	Until(m.T, queue+" is read", func() bool {
		state, err := conn.Inspect(m.T.Context(), queue)
		return err == nil && state.Consumers > 0
	})
}

const pause = 20 * time.Millisecond

// Until polls a condition.
func Until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", Patience, what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal("ended while waiting: " + what)
		case <-time.After(pause):
		}
	}
}

// Digest is the digest of a text.
func Digest(text string) string { return schema.Digest([]byte(text)) }

// Hex40 stands for the id of a commit or tree.
func Hex40(text string) string { return strings.TrimPrefix(Digest(text), "sha256:")[:40] }
