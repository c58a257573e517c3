package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

const patience = time.Minute

// names gives every test nodes and clients of its own.
var names atomic.Int64

func fresh(prefix string) string { return fmt.Sprintf("%s-%d", prefix, names.Add(1)) }

// as is the broker's URL for an account.
func as(t *testing.T, broker testenv.BrokerInfo, user, password string) string {
	t.Helper()
	return (&url.URL{Scheme: "amqps", User: url.UserPassword(user, password), Host: broker.Host, Path: "/"}).String()
}

// dial connects and hangs up after the test.
func dial(t *testing.T, broker testenv.BrokerInfo, address string) *bus.Conn {
	t.Helper()
	conn := bus.Dial(context.Background(), bus.Config{
		URL: address, Fingerprints: []string{broker.Fingerprint}, Name: t.Name(), MaxBackoff: time.Second,
	})
	t.Cleanup(conn.Close)
	if err := conn.WaitReady(deadline(t)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// mesh is a broker with the mesh's queues, seen by the controller.
type mesh struct {
	testenv.BrokerInfo
	admin      bus.Admin
	controller *bus.Conn
}

func newMesh(t *testing.T, broker testenv.BrokerInfo) mesh {
	t.Helper()
	admin := bus.Admin{URL: broker.AdminURL, User: broker.User, Password: broker.Password}
	if err := admin.PutAccount(deadline(t), bus.ControllerAccount("controller's")); err != nil {
		t.Fatal(err)
	}
	controller := dial(t, broker, as(t, broker, bus.ControllerName, "controller's"))
	must(t, bus.Declare(deadline(t), controller, bus.MeshTopology()))
	return mesh{broker, admin, controller}
}

// common holds apart who reads or counts the queues that all tests of one broker share.
var common sync.RWMutex

// shared is the common broker, for a test with queues of its own.
func shared(t *testing.T) mesh {
	t.Helper()
	common.RLock()
	t.Cleanup(common.RUnlock)
	return newMesh(t, testenv.Broker(t))
}

// alone is the common broker while no other test uses it, its queues empty.
func alone(t *testing.T) mesh {
	t.Helper()
	common.Lock()
	t.Cleanup(common.Unlock)
	m := newMesh(t, testenv.Broker(t))
	cleaner := intrude(t, m, m.URL, m.User)
	channel, err := cleaner.conn.Channel()
	must(t, err)
	defer channel.Close()
	for _, q := range bus.MeshTopology().Queues {
		_, err := channel.QueuePurge(q.Name, false)
		must(t, err)
	}
	return m
}

// node declares a node's queues and makes its account and its builder's.
func (m mesh) node(t *testing.T) string {
	t.Helper()
	node := fresh("node")
	must(t, bus.Declare(deadline(t), m.controller, bus.NodeTopology(node)))
	must(t, m.admin.PutAccount(deadline(t), bus.BuilderAccount(node, "builder's "+node)))
	must(t, m.admin.PutAccount(deadline(t), bus.NodeAccount(node, "node's "+node)))
	return node
}

func (m mesh) builderURL(t *testing.T, node string) string {
	return as(t, m.BrokerInfo, bus.BuilderName(node), "builder's "+node)
}

func (m mesh) nodeURL(t *testing.T, node string) string {
	return as(t, m.BrokerInfo, bus.NodeName(node), "node's "+node)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until check is satisfied, and fails with what it said last.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	ctx := deadline(t)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-ticker.C:
		}
	}
}

// receive consumes a queue in the background and hands out what arrives.
func receive(t *testing.T, conn *bus.Conn, queue string) <-chan bus.Delivery {
	t.Helper()
	arrived := make(chan bus.Delivery, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- conn.Consume(ctx, queue, 10, func(_ context.Context, d bus.Delivery) error {
			arrived <- d
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("consume %s: %v", queue, err)
		}
	})
	return arrived
}

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-deadline(t).Done():
		t.Fatal("nothing arrived")
		panic("unreachable")
	}
}

func TestPublishReachesAQueueOrSaysSo(t *testing.T) {
	t.Parallel()
	m := shared(t)
	node := m.node(t)
	arrived := receive(t, m.controller, bus.CommandQueue(node))
	must(t, m.controller.Publish(deadline(t), bus.Message{
		Exchange: bus.Orders, Key: bus.CommandQueue(node), CorrelationID: "c", Type: "restart", Body: []byte(`{"a":1}`),
		Headers: map[string]any{"x": "y"},
	}))
	d := next(t, arrived)
	if d.CorrelationID != "c" || d.Type != "restart" || string(d.Body) != `{"a":1}` || d.Headers["x"] != "y" ||
		d.UserID != bus.ControllerName || d.Exchange != bus.Orders || d.MessageID == "" {
		t.Errorf("got %+v", d)
	}
	for _, c := range []struct {
		message bus.Message
		want    error
	}{
		{bus.Message{Exchange: bus.Orders, Key: "node.nobody.declare"}, bus.ErrUnrouted},
		{bus.Message{Exchange: "mesh.orders.none", Key: "x"}, bus.ErrRefused},
		{bus.Message{Exchange: bus.Orders, Key: "x", Body: make([]byte, bus.MaxBody+1)}, bus.ErrTooLarge},
	} {
		if err := m.controller.Publish(deadline(t), c.message); !errors.Is(err, c.want) {
			t.Errorf("publish %q to %q: %v, want %v", c.message.Key, c.message.Exchange, err, c.want)
		}
	}
	// A refused message spoils nothing for the next.
	must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.CommandQueue(node), Body: []byte("2")}))
	if d := next(t, arrived); string(d.Body) != "2" {
		t.Errorf("got %+v", d)
	}
}

func TestDeclareQueueKeepsTheNewest(t *testing.T) {
	t.Parallel()
	m := shared(t)
	node := m.node(t)
	for i := range 3 {
		must(t, m.controller.Publish(deadline(t), bus.Message{
			Exchange: bus.Orders, Key: bus.DeclareQueue(node), Body: fmt.Append(nil, i),
		}))
	}
	host := dial(t, m.BrokerInfo, m.nodeURL(t, node))
	if d := next(t, receive(t, host, bus.DeclareQueue(node))); string(d.Body) != "2" {
		t.Errorf("the first declaration to arrive is %s, want the newest, 2", d.Body)
	}
}

func TestOnlyThePinnedBrokerIsSpokenTo(t *testing.T) {
	t.Parallel()
	broker := testenv.Broker(t)
	conn := bus.Dial(t.Context(), bus.Config{
		URL: broker.URL, Fingerprints: []string{"sha256:" + strings.Repeat("0", 64)}, Name: t.Name(),
	})
	defer conn.Close()
	eventually(t, func() error {
		s := conn.State()
		if s.Publishing || s.Consuming {
			t.Fatal("connected to a broker with another fingerprint")
		}
		if !strings.Contains(s.LastError, "fingerprint") {
			return fmt.Errorf("the state says %+v, want the fingerprint named", s)
		}
		return nil
	})
}

// A credential that is replaced, as `mesh builder issue` does, is used without a restart.
func TestAReplacedCredentialIsUsedForTheNextConnection(t *testing.T) {
	m := shared(t)
	broker := m.BrokerInfo
	node := fresh("renewed")
	if err := m.admin.PutAccount(t.Context(), bus.BuilderAccount(node, "first")); err != nil {
		t.Fatal(err)
	}
	var password atomic.Value
	var asked atomic.Bool // for the second
	password.Store("first")
	conn := bus.Dial(context.Background(), bus.Config{
		URL: as(t, broker, bus.BuilderName(node), "first"), Fingerprints: []string{broker.Fingerprint}, Name: t.Name(), MaxBackoff: 100 * time.Millisecond,
		Renewed: func() (string, []string, error) {
			now := password.Load().(string)
			asked.Store(now == "second")
			return as(t, broker, bus.BuilderName(node), now), []string{broker.Fingerprint}, nil
		},
	})
	defer conn.Close()
	if err := conn.WaitReady(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.admin.DeleteAccount(t.Context(), bus.BuilderName(node)); err != nil { // which ends its connections
		t.Fatal(err)
	}
	if err := m.admin.PutAccount(t.Context(), bus.BuilderAccount(node, "second")); err != nil {
		t.Fatal(err)
	}
	password.Store("second")
	var err error
	for ctx := deadline(t); ; time.Sleep(50 * time.Millisecond) {
		// Nobody reads it: an answer of the broker's is all that is asked for.
		err = conn.Publish(ctx, bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildProgress("none"), CorrelationID: "none"})
		if asked.Load() && (err == nil || errors.Is(err, bus.ErrUnrouted)) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("with the new password: %v", err)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := bus.Config{URL: "amqps://u:secret@h:1/", Fingerprints: []string{"sha256:00"}}
	must(t, good.Check())
	for name, spoil := range map[string]func(*bus.Config){
		"no TLS":         func(c *bus.Config) { c.URL = "amqp://u:secret@h:1/" },
		"no user":        func(c *bus.Config) { c.URL = "amqps://h:1/" },
		"no host":        func(c *bus.Config) { c.URL = "amqps://u:secret@/" },
		"no fingerprint": func(c *bus.Config) { c.Fingerprints = nil },
		"no URL":         func(c *bus.Config) { c.URL = "amqps://u:secret@h:x/" },
	} {
		bad := good
		spoil(&bad)
		if err := bad.Check(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequestGoesToTheDeadAfterTheLimit(t *testing.T) {
	t.Parallel()
	m := alone(t)
	dead := receive(t, m.controller, bus.BuildsDead)
	builder := dial(t, m.BrokerInfo, m.builderURL(t, m.node(t)))
	attempts := make(chan int64, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- builder.Consume(ctx, bus.Builds, 1, func(_ context.Context, d bus.Delivery) error {
			attempts <- d.Attempts
			return bus.Requeue(errors.New("this one always fails"))
		})
	}()
	must(t, m.controller.Publish(deadline(t), bus.Message{
		Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: "poison", Body: []byte("{}"),
	}))
	d := next(t, dead)
	if d.CorrelationID != "poison" || d.UserID != bus.ControllerName {
		t.Errorf("dead letter is %+v", d)
	}
	cancel()
	must(t, <-done)
	if got := len(attempts); got != 1+bus.DeliveryLimit {
		t.Errorf("delivered %d times, want once and %d times again", got, bus.DeliveryLimit)
	}
}

// A database that is away fails every message at once, and would have each come back a thousand
// times a second.
func TestAMessageThatFailsComesBackAfterPausesThatGrow(t *testing.T) {
	t.Parallel()
	m := alone(t)
	dead := receive(t, m.controller, bus.BuildsDead)
	type arrival struct {
		id string
		at time.Time
	}
	arrivals := make(chan arrival, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- m.controller.Consume(ctx, bus.Builds, 2, func(_ context.Context, d bus.Delivery) error {
			arrivals <- arrival{d.CorrelationID, time.Now()}
			if d.CorrelationID == "fails" {
				return errors.New("the database is away")
			}
			return nil
		})
	}()
	for _, id := range []string{"fails", "works"} {
		must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: id, Body: []byte("{}")}))
	}
	next(t, dead)
	cancel()
	must(t, <-done)
	close(arrivals)
	var failed []time.Time
	other := -1 // how often the first had come when the other was handled
	for a := range arrivals {
		if a.id == "works" {
			other = len(failed)
			continue
		}
		failed = append(failed, a.at)
	}
	if other < 0 || other == len(failed) {
		t.Errorf("the other message was handled after %d of %d deliveries of the first", other, len(failed))
	}
	for i, least := 1, 100*time.Millisecond; i < len(failed); i, least = i+1, 2*least {
		if gap := failed[i].Sub(failed[i-1]); gap < least {
			t.Errorf("delivery %d came %s after the one before, want at least %s", i+1, gap, least)
		}
	}
}

func TestRejectGoesToTheDeadAtOnce(t *testing.T) {
	t.Parallel()
	m := alone(t)
	dead := receive(t, m.controller, bus.BuildsDead)
	var deliveries atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- m.controller.Consume(ctx, bus.Builds, 1, func(context.Context, bus.Delivery) error {
			deliveries.Add(1)
			return bus.Reject(errors.New("not a job"))
		})
	}()
	must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: "bad"}))
	if d := next(t, dead); d.CorrelationID != "bad" || deliveries.Load() != 1 {
		t.Errorf("dead letter %+v after %d deliveries", d, deliveries.Load())
	}
	cancel()
	must(t, <-done)
}

func TestAccountsAreWrittenAsGiven(t *testing.T) {
	t.Parallel()
	m := shared(t)
	node := m.node(t)
	want := bus.BuilderAccount(node, "x")
	got, err := m.admin.Account(deadline(t), want.Name)
	must(t, err)
	if got.Configure != want.Configure || got.Write != want.Write || got.Read != want.Read || len(got.Topics) != len(want.Topics) {
		t.Errorf("account is %+v, want %+v", got, want)
	}
	must(t, m.admin.DeleteAccount(deadline(t), want.Name))
	must(t, m.admin.DeleteAccount(deadline(t), want.Name))
	if _, err := m.admin.Account(deadline(t), want.Name); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("after deletion: %v", err)
	}
}

func TestDeletingAnAccountEndsItsConnections(t *testing.T) {
	t.Parallel()
	m := shared(t)
	node := m.node(t)
	builder := dial(t, m.BrokerInfo, m.builderURL(t, node))
	must(t, m.admin.DeleteAccount(deadline(t), bus.BuilderName(node)))
	eventually(t, func() error {
		if s := builder.State(); s.Publishing || s.Consuming || s.LastError == "" {
			return fmt.Errorf("state is %+v", s)
		}
		return nil
	})
	// And it comes back with the account, as after a rejoin.
	must(t, m.admin.PutAccount(deadline(t), bus.BuilderAccount(node, "builder's "+node)))
	must(t, builder.WaitReady(deadline(t)))
}
