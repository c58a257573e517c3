// Package buildertest gives tests of builders the other end of the wire: a real broker with
// the mesh's queues, and an asker who sends jobs and reads results.
package buildertest

import (
	"context"
	"encoding/json"
	"net/url"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/schema"
)

// Patience is how long anything may take on a slow machine.
const Patience = 4 * time.Minute

// password is that of every account made here; the broker is the test's own.
const password = "not-a-secret"

// Mesh is a broker with the mesh's topology, and the controller's connection to it. All
// tests of a binary share the broker and its queue of builds: those that use it must not run
// in parallel.
type Mesh struct {
	testenv.BrokerInfo
	Admin      bus.Admin
	Controller *bus.Conn
	// Results has every result as it arrives.
	Results <-chan schema.Result

	t testing.TB
}

// New declares the topology, empties the queue of builds and reads results from now on.
func New(t testing.TB) *Mesh {
	t.Helper()
	return NewOn(t, testenv.Broker(t))
}

// NewOn is [New] on a broker of the test's own.
func NewOn(t testing.TB, info testenv.BrokerInfo) *Mesh {
	t.Helper()
	m := &Mesh{BrokerInfo: info, t: t, Admin: bus.Admin{URL: info.AdminURL, User: info.User, Password: info.Password}}
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	m.check(m.Admin.PutAccount(ctx, bus.ControllerAccount(password)))
	m.Controller = m.Dial(m.url(bus.ControllerName))
	m.check(m.Controller.WaitReady(ctx))
	m.check(bus.Declare(ctx, m.Controller, bus.MeshTopology()))
	results := make(chan schema.Result, 100)
	m.Results = results
	m.Receive("build-results", func(d bus.Delivery) {
		r, err := schema.ParseResult("result", d.Body)
		if err != nil {
			t.Errorf("result cannot be read: %v\n%s", err, d.Body)
			return
		}
		if d.Exchange != bus.Answers || d.CorrelationID != r.ID {
			t.Errorf("result %s came by exchange %q with correlation id %q", r.ID, d.Exchange, d.CorrelationID)
		}
		if _, err := d.Builder(); err != nil {
			t.Errorf("result %s: %v", r.ID, err)
		}
		results <- *r
	})
	return m
}

func (m *Mesh) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *Mesh) url(user string) string {
	return (&url.URL{Scheme: "amqps", User: url.UserPassword(user, password), Host: m.Host, Path: "/"}).String()
}

// BuilderURL makes the account of the builder on a node and gives its URL.
func (m *Mesh) BuilderURL(node string) string {
	m.t.Helper()
	m.check(m.Admin.PutAccount(m.t.Context(), bus.BuilderAccount(node, password)))
	return m.url(bus.BuilderName(node))
}

// Dial connects until the test ends.
func (m *Mesh) Dial(address string) *bus.Conn {
	m.t.Helper()
	conn := bus.Dial(context.Background(), bus.Config{
		URL: address, Fingerprints: []string{m.Fingerprint}, Name: m.t.Name(), MaxBackoff: time.Second,
	})
	m.t.Cleanup(conn.Close)
	return conn
}

// Receive hands a queue's messages to f until the test ends, or until stop is called.
func (m *Mesh) Receive(queue string, f func(bus.Delivery)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- m.Controller.Consume(ctx, queue, 10, func(_ context.Context, d bus.Delivery) error {
			f(d)
			return nil
		})
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			m.t.Errorf("consume %s: %v", queue, err)
		}
	}
	m.t.Cleanup(stop)
	return stop
}

// Order sends a job.
func (m *Mesh) Order(job schema.Job) {
	m.t.Helper()
	job.Schema = schema.Version
	body, err := json.Marshal(job)
	m.check(err)
	m.Send(job.ID, body)
}

// Send sends whatever bytes as a job.
func (m *Mesh) Send(id string, body []byte) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), Patience)
	defer cancel()
	m.check(m.Controller.Publish(ctx, bus.Message{Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: id, Body: body}))
}

// Next is the next result.
func (m *Mesh) Next() schema.Result {
	m.t.Helper()
	select {
	case r := <-m.Results:
		return r
	case <-time.After(Patience):
		m.t.Fatal("no result arrived")
		panic("unreachable")
	}
}

// Settled waits until the queue of builds is empty and every job acknowledged.
func (m *Mesh) Settled() {
	m.t.Helper()
	deadline := time.After(Patience)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		info, err := m.Admin.QueueInfo(m.t.Context(), bus.Builds)
		if err == nil && info.Messages == 0 && info.Unacked == 0 {
			return
		}
		select {
		case <-deadline:
			m.t.Fatalf("queue of builds still has %+v, %v", info, err)
		case <-ticker.C:
		}
	}
}
