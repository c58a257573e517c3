package testenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/mesh-control/mesh/internal/foundation"
	"github.com/mesh-control/mesh/internal/pki"
)

// BrokerInfo says how to reach a broker as its administrator.
type BrokerInfo struct {
	URL         string // amqps://user:password@host:port/
	AdminURL    string // management API, without credentials
	User        string
	Password    string
	Fingerprint string // the certificate's pin
	Host        string // host:port of URL
	CA          string // PEM; what signed the certificate
}

// Broker is the RabbitMQ node of this test binary. Everybody shares it: use names of your own
// for nodes and clients, and PrivateBroker to stop one.
func Broker(t testing.TB) BrokerInfo {
	t.Helper()
	return servers.broker.get(t, func(ctx context.Context) (BrokerInfo, error) {
		private, err := newBroker(ctx)
		if err != nil {
			return BrokerInfo{}, err
		}
		return private.BrokerInfo, private.start(ctx)
	})
}

// PrivateBroker is a RabbitMQ node of one test, which may stop and start it.
type PrivateBroker struct {
	BrokerInfo
	recipe foundation.Broker

	mu     sync.Mutex
	server *process
}

// NewPrivateBroker starts a node that ends with the test.
func NewPrivateBroker(t testing.TB) *PrivateBroker {
	t.Helper()
	skipShort(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	broker, err := newBroker(ctx)
	if err == nil {
		t.Cleanup(broker.Kill)
		err = broker.start(ctx)
	}
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return broker
}

// Kill ends the node as a power cut would. Killing a node that is down does nothing.
func (b *PrivateBroker) Kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil {
		b.server.kill()
		b.server = nil
	}
}

// Settle has the node write its tables to disk. RabbitMQ 3.10 keeps the directory of quorum
// queues in memory for some seconds: a node killed sooner comes back with a queue that takes
// messages and never confirms one.
func (b *PrivateBroker) Settle(t testing.TB) {
	t.Helper()
	b.Control(t, "eval", "[ok = dets:sync(Table) || Table <- dets:all()].")
}

// Start starts a killed node again, with its data, on its ports.
func (b *PrivateBroker) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := b.start(ctx); err != nil {
		t.Fatalf("testenv: %v", err)
	}
}

// Output is the end of what the running node has logged, for a failing test to show.
func (b *PrivateBroker) Output() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server == nil {
		return ""
	}
	return b.server.output.String()
}

// Signal sends a signal to the running node, SIGSTOP and SIGCONT for instance.
func (b *PrivateBroker) Signal(signal syscall.Signal) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server == nil {
		return errors.New("signal broker: it is down")
	}
	return b.server.cmd.Process.Signal(signal)
}

// Lose removes what a killed node had stored, accounts included. The administrator is made
// again at the next start.
func (b *PrivateBroker) Lose(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil {
		t.Fatal("testenv: the broker is running")
	}
	if err := os.RemoveAll(filepath.Join(b.recipe.Dir, "mnesia")); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	if err := b.recipe.Init(t.Context()); err != nil {
		t.Fatalf("testenv: %v", err)
	}
}

// Control runs the administration tool on the running node: "set_vm_memory_high_watermark",
// "absolute", "1" raises an alarm.
func (b *PrivateBroker) Control(t testing.TB, args ...string) string {
	t.Helper()
	command, err := b.recipe.Control(append([]string{"--silent"}, args...)...)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	cmd, err := command.Cmd(t.Context())
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("testenv: rabbitmqctl %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (b *PrivateBroker) start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil {
		return errors.New("start broker: it is running")
	}
	command, err := b.recipe.Command()
	if err != nil {
		return err
	}
	// It keeps its own order on SIGTERM for seconds; a test has nothing to keep.
	server, err := servers.start(command, syscall.SIGKILL)
	if err != nil {
		return err
	}
	b.server = server
	return server.until(ctx, b.recipe.WaitReady)
}

func newBroker(ctx context.Context) (*PrivateBroker, error) {
	dir, err := servers.dir("rabbitmq")
	if err != nil {
		return nil, err
	}
	free, err := ports(4)
	if err != nil {
		return nil, err
	}
	ca, err := pki.NewCA("test mesh")
	if err != nil {
		return nil, err
	}
	cert, key, err := ca.Issue("broker", []string{"127.0.0.1", "localhost"})
	if err != nil {
		return nil, err
	}
	authority, _, err := ca.PEM()
	if err != nil {
		return nil, err
	}
	fingerprint, err := pki.FingerprintPEM(cert)
	if err != nil {
		return nil, err
	}
	recipe := foundation.Broker{
		Dir: dir, AMQPSPort: free[0], ManagementPort: free[1], DistPort: free[2], EPMDPort: free[3],
		CertPEM: cert, KeyPEM: key, AdminUser: "administrator", AdminPassword: "test",
		Settings: map[string]string{
			"vm_memory_high_watermark.absolute": "1GB",
			"disk_free_limit.absolute":          "50MB",
			"collect_statistics_interval":       "5000",
			// Clients of the management API see a change after this long at most.
			"management.rates_mode": "none",
		},
	}
	if err := recipe.Init(ctx); err != nil {
		return nil, err
	}
	return &PrivateBroker{recipe: recipe, BrokerInfo: BrokerInfo{
		URL:      recipe.URL(recipe.AdminUser, recipe.AdminPassword),
		AdminURL: recipe.ManagementURL(), User: recipe.AdminUser, Password: recipe.AdminPassword,
		Fingerprint: fingerprint, CA: string(authority), Host: "127.0.0.1:" + strconv.Itoa(free[0]),
	}}, nil
}
