package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/schema"
)

// controller is the other side of the broker: it sends declarations and reads reports.
type controller struct {
	n    *node
	conn *bus.Conn

	mu      sync.Mutex
	reports []schema.Report
	users   map[string]bool
}

// join makes the node's account and queues, and tells the host of them.
func (n *node) join(broker testenv.BrokerInfo) *controller {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin := bus.Admin{URL: broker.AdminURL, User: broker.User, Password: broker.Password}
	check(n.t, admin.PutAccount(ctx, bus.NodeAccount(n.name, "secret")))
	c := &controller{n: n, users: map[string]bool{}}
	c.conn = bus.Dial(context.Background(), bus.Config{
		URL: broker.URL, Fingerprints: []string{broker.Fingerprint}, Name: "controller", MaxBackoff: 200 * time.Millisecond,
	})
	n.t.Cleanup(c.conn.Close)
	check(n.t, bus.Declare(ctx, c.conn, bus.MeshTopology()))
	check(n.t, bus.Declare(ctx, c.conn, bus.NodeTopology(n.name)))
	n.config.Broker = &schema.Credential{
		URL: fmt.Sprintf("amqps://%s:secret@%s/", bus.NodeName(n.name), broker.Host), Fingerprint: broker.Fingerprint,
	}
	n.config.ReportSeconds = 1
	n.close()
	reading, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.conn.Consume(reading, bus.Reports, 10, c.receive)
	}()
	n.t.Cleanup(func() { stop(); <-done })
	return c
}

func (c *controller) receive(_ context.Context, d bus.Delivery) error {
	if d.Key != bus.KeyReport(c.n.name) {
		return nil // another test's, on the shared broker
	}
	report, err := schema.ParseReport("report", d.Body)
	if err != nil {
		c.n.t.Errorf("a report does not parse: %v", err)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = append(c.reports, *report)
	c.users[d.UserID] = true
	return nil
}

func (c *controller) last() schema.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.reports) == 0 {
		return schema.Report{}
	}
	return c.reports[len(c.reports)-1]
}

func (c *controller) push(d schema.Declaration) {
	c.n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	queue := bus.DeclareQueue(c.n.name)
	check(c.n.t, c.conn.Publish(ctx, bus.Message{Exchange: bus.Orders, Key: queue, Type: "declaration", Body: encode(c.n.t, d)}))
}

// run runs the host until the returned function is called.
func (n *node) run() (stop func()) {
	n.t.Helper()
	h, err := host.Open(n.config, n.layout, testLog(n.t))
	check(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.Run(ctx); err != nil {
			n.t.Errorf("run: %v", err)
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
		h.Close()
	})
}

func TestHostThatWasDownAppliesExactlyTheNewest(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	// One that reads every node's reports would take another test's from the shared broker.
	broker := testenv.NewPrivateBroker(t)
	c := n.join(broker.BrokerInfo)
	file := func(content string) schema.Resource {
		return schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text(content)}
	}
	c.push(n.declaration(file("one")))
	stop := n.run()
	eventually(t, "the first is applied", func() bool { return c.last().Applied == 1 })
	stop()
	for _, content := range []string{"two", "three", "four"} {
		c.push(n.declaration(file(content)))
	}
	stop = n.run()
	eventually(t, "the newest is applied", func() bool { return c.last().Applied == 4 })
	stop()
	if got := n.read("/etc/mesh/m/f"); got != "four" {
		t.Errorf("the file holds %q", got)
	}
	previous, err := os.ReadFile(filepath.Join(n.layout.State, "declaration.previous.json"))
	if err != nil || !strings.Contains(string(previous), `"generation": 1,`) {
		t.Errorf("something between the first and the newest was accepted: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range c.reports {
		if i > 0 && r.Sequence <= c.reports[i-1].Sequence {
			t.Errorf("report %d has sequence %d after %d", i, r.Sequence, c.reports[i-1].Sequence)
		}
	}
	if len(c.users) != 1 || !c.users[bus.NodeName(n.name)] {
		t.Errorf("reports come from %v", c.users)
	}
	last := c.reports[len(c.reports)-1]
	if last.Outcome != host.OutcomeApplied || len(last.Resources) != 1 || len(last.Capabilities) != 1 || last.Capabilities[0] != host.CapabilityContainers {
		t.Errorf("reported as %+v", last)
	}
}

func TestBrokerGoneEverythingRunsOn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	broker := testenv.NewPrivateBroker(t)
	c := n.join(broker.BrokerInfo)
	one, two := n.twoVersions("")
	c.push(n.declaration(one...))
	stop := n.run()
	defer stop()
	eventually(t, "it is applied", func() bool { return c.last().Applied == 1 })
	container := n.container("m/web")
	broker.Kill()
	var pid int
	_, err := fmt.Sscan(processID(t, n.root+"/srv/tree/app"), &pid)
	check(t, err)
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "a service that dies meanwhile is started again", func() bool {
		return !errors.Is(syscall.Kill(pid, 0), nil) && get(t, n.service) == "1"
	})
	if after := n.container("m/web"); after.ID != container.ID || !after.Running() {
		t.Errorf("the container is %+v", after)
	}
	broker.Start(t)
	c.push(n.declaration(two...))
	eventually(t, "it is applied", func() bool { return c.last().Applied == 2 })
	if got := get(t, n.web); got != "2" {
		t.Errorf("the container answers %q", got)
	}
}
