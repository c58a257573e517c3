package delivery

import (
	"context"
	"crypto/ed25519"
	"embed"
	"log/slog"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/reconcile/secrets"
	"github.com/mesh-control/mesh/schema"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Config of the extension.
type Config struct {
	Bus     *bus.Conn
	Secrets *secrets.Secrets
	BuiltIn []compose.BuiltIn
	Key     ed25519.PrivateKey // signs declarations
	Epoch   int64
	Log     *slog.Logger
}

// Delivery turns assignments into what each node is told.
type Delivery struct {
	config  Config
	running sync.WaitGroup
	stop    context.CancelFunc

	mu   sync.Mutex
	news chan struct{}
}

// New makes the extension's state; it talks to nobody before Start.
func New(config Config) *Delivery {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Delivery{config: config, news: make(chan struct{})}
}

// Migrations of the extension, also for whoever adopts a mesh before a controller runs.
func Migrations() []store.Migration { return store.Embedded(migrationFiles, "delivery") }

// Extension is what the controller registers.
func (d *Delivery) Extension() extension.Extension {
	return extension.Extension{
		Name:       "delivery",
		Requires:   []string{"inventory", "secrets", "builds"},
		Migrations: Migrations(),
		API:        func(*extension.Context) []extension.Method { return d.methods() },
		Reconcilers: []extension.Reconciler{
			{Name: extension.ComposeKind, ShardBy: extension.ShardNode, Run: d.composeNode},
			{Name: workDeliver, ShardBy: extension.ShardNode, Run: d.deliver},
			{Name: workSweep, ShardBy: extension.ShardNone, Run: d.sweep, Periodic: []extension.Periodic{{Key: "sweep", Every: 15 * time.Second}}},
		},
		StatusHandlers: []extension.StatusHandler{d.onReport},
		Catalog: extension.Catalog{
			Actions: []string{api.DeliveryPlan.Action, api.DeliveryPush.Action, api.NodeList.Action},
		},
		SelfCheck: d.selfCheck,
		Start:     d.start,
		Stop:      d.end,
	}
}

func (d *Delivery) methods() []extension.Method {
	type mc = extension.MethodContext
	waits := extension.Options{LongPoll: true}
	return []extension.Method{
		extension.Handle(api.DeliveryPlan, waits, func(ctx context.Context, c *mc, in api.PlanIn) (api.PlanOut, error) {
			return d.plan(ctx, c.Context, in)
		}),
		extension.Handle(api.DeliveryPush, extension.Options{}, func(ctx context.Context, c *mc, in api.PushIn) (api.PushOut, error) {
			return d.push(ctx, c.Context, c.Tx, c.Caller.Name, in)
		}),
		extension.Handle(api.DeliveryWatch, waits, func(ctx context.Context, c *mc, in api.DeliveryWatchIn) (api.DeliveryWatchOut, error) {
			return d.watch(ctx, c.Context, in)
		}),
		extension.Handle(api.NodeList, extension.Options{}, func(ctx context.Context, c *mc, _ api.None) (api.NodeListOut, error) {
			nodes, err := d.Nodes(ctx, c.Tx, nil, c.Clock.Now())
			return api.NodeListOut{Nodes: nodes}, err
		}),
		extension.Handle(api.NodeShow, extension.Options{}, func(ctx context.Context, c *mc, in api.NodeRef) (api.NodeShowOut, error) {
			return d.show(ctx, c.Tx, in.Node, c.Clock.Now())
		}),
	}
}

func (d *Delivery) show(ctx context.Context, q inventory.Queryer, node string, now time.Time) (api.NodeShowOut, error) {
	all, err := readFacts(ctx, q, []string{node})
	if err != nil {
		return api.NodeShowOut{}, err
	}
	if len(all) == 0 {
		return api.NodeShowOut{}, &api.Error{Code: api.CodeNotFound, Message: "there is no node " + node, Remedy: "mesh node ls"}
	}
	out := api.NodeShowOut{Node: all[0].node(now), Resources: all[0].report.Resources, Agent: all[0].report.Agent}
	if out.Resources == nil {
		out.Resources = []schema.ResourceStatus{}
	}
	return out, nil
}

// start declares every node's queues once the broker answers, so that a host finds its own
// before anything was pushed to it.
func (d *Delivery) start(_ context.Context, c *extension.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	d.running.Go(func() {
		err := bus.Declare(ctx, d.config.Bus, bus.MeshTopology())
		var names []string
		if err == nil {
			names, err = inventory.NodeNames(ctx, c.Store)
		}
		for _, name := range names {
			if err == nil {
				err = bus.Declare(ctx, d.config.Bus, bus.NodeTopology(name))
			}
		}
		if err != nil && ctx.Err() == nil {
			d.config.Log.Error("queues of nodes not declared", "error", err)
		}
	})
	return nil
}

func (d *Delivery) end(context.Context) error {
	if d.stop != nil {
		d.stop()
		d.running.Wait()
	}
	return nil
}

func (d *Delivery) selfCheck(ctx context.Context, c *extension.Context) ([]api.Finding, error) {
	all, err := readFacts(ctx, c.Store, nil)
	if err != nil {
		return nil, err
	}
	var findings []api.Finding
	for _, f := range all {
		for _, b := range f.blocked {
			findings = append(findings, api.Finding{
				Check: "delivery.blocked", Severity: extension.SeverityWarning, Fix: b.Remedy,
				Message: f.name + ": module " + b.Module + " does not go out (" + b.Reason + "): " + b.Message,
			})
		}
		switch f.state(c.Clock.Now()) {
		case StateSilent, StateNeverHeard:
			findings = append(findings, api.Finding{
				Check: "delivery.silent", Severity: extension.SeverityWarning, Message: "node " + f.name + " does not report",
				Fix: "see that mesh-host runs there and reaches the broker",
			})
		case StateFailed, StateRefused, StateRolledBack:
			findings = append(findings, api.Finding{
				Check: "delivery.outcome", Severity: extension.SeverityError, Fix: "mesh node show " + f.name,
				Message: "node " + f.name + ": last apply " + f.report.Outcome + ": " + f.report.Cause,
			})
		}
	}
	return findings, nil
}
