package inventory

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Config of the extension.
type Config struct {
	Bus     *bus.Conn
	Admin   bus.Admin
	BuiltIn []compose.BuiltIn
	Log     *slog.Logger
}

// Inventory knows what there is.
type Inventory struct {
	config  Config
	host    *extension.Context
	running sync.WaitGroup
	stop    context.CancelFunc
}

// New makes the extension's state; it talks to nobody before Start.
func New(config Config) *Inventory {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Inventory{config: config}
}

// Migrations of the extension, also for whoever adopts a mesh before a controller runs.
func Migrations() []store.Migration { return store.Embedded(migrationFiles, "inventory") }

// Extension is what the controller registers.
func (i *Inventory) Extension() extension.Extension {
	return extension.Extension{
		Name:       "inventory",
		Migrations: Migrations(),
		API:        func(*extension.Context) []extension.Method { return i.methods() },
		Nodes:      listNodes,
		Catalog: extension.Catalog{
			Actions: []string{
				api.NodeAdd.Action, api.NodeForget.Action, api.NodeLabel.Action,
				api.AssignmentAdd.Action, api.AssignmentList.Action,
			},
			ResourceTypes: []string{"node", "assignment"},
		},
		Start: i.start,
		Stop:  i.end,
	}
}

func listNodes(ctx context.Context, c *extension.Context) ([]extension.Node, error) {
	rows, err := Nodes(ctx, c.Store)
	var out []extension.Node
	for _, row := range rows {
		out = append(out, extension.Node{Name: row.Name, Labels: row.Labels})
	}
	return out, err
}

func (i *Inventory) methods() []extension.Method {
	type mc = extension.MethodContext
	node := func(name func(any) string) extension.Options {
		return extension.Options{Resource: func(in any) extension.Resource { return extension.Resource{Type: "node", ID: name(in)} }}
	}
	return []extension.Method{
		extension.Handle(api.NodeAdd, node(func(in any) string { return in.(api.NodeAddIn).Name }), func(ctx context.Context, c *mc, in api.NodeAddIn) (api.Node, error) {
			return i.addNode(ctx, c.Context, c.Tx, in)
		}),
		extension.Handle(api.NodeForget, node(func(in any) string { return in.(api.NodeRef).Node }), func(ctx context.Context, c *mc, in api.NodeRef) (api.None, error) {
			return api.None{}, i.forgetNode(ctx, c.Context, c.Tx, in.Node)
		}),
		extension.Handle(api.NodeLabel, node(func(in any) string { return in.(api.NodeLabelIn).Node }), func(ctx context.Context, c *mc, in api.NodeLabelIn) (api.Node, error) {
			return labelNode(ctx, c.Context, c.Tx, in)
		}),
		extension.Handle(api.AssignmentAdd, node(func(in any) string { return in.(api.AssignIn).Node }), func(ctx context.Context, c *mc, in api.AssignIn) (api.AssignOut, error) {
			return i.assign(ctx, c.Context, c.Tx, in)
		}),
		extension.Handle(api.AssignmentRemove, node(func(in any) string { return in.(api.UnassignIn).Node }), func(ctx context.Context, c *mc, in api.UnassignIn) (api.None, error) {
			return api.None{}, i.unassign(ctx, c.Context, c.Tx, in)
		}),
		extension.Handle(api.AssignmentList, extension.Options{}, func(ctx context.Context, c *mc, _ api.None) (api.AssignmentListOut, error) {
			all, err := Assignments(ctx, c.Tx)
			if all == nil {
				all = []api.Assignment{}
			}
			return api.AssignmentListOut{Assignments: all}, err
		}),
	}
}

// start listens to reports. It waits for no broker.
func (i *Inventory) start(_ context.Context, c *extension.Context) error {
	i.host = c
	ctx, cancel := context.WithCancel(context.Background())
	i.stop = cancel
	i.running.Go(func() {
		err := bus.Declare(ctx, i.config.Bus, bus.MeshTopology())
		if err == nil {
			err = i.config.Bus.Consume(ctx, bus.Reports, 16, i.onReport)
		}
		if err != nil && ctx.Err() == nil {
			i.config.Log.Error("reports not read", "error", err)
		}
	})
	return nil
}

func (i *Inventory) end(context.Context) error {
	if i.stop != nil {
		i.stop()
		i.running.Wait()
	}
	return nil
}

// InvalidateAll has every node composed anew: what changed may bind on any of them.
func InvalidateAll(ctx context.Context, c *extension.Context, tx pgx.Tx) error {
	names, err := NodeNames(ctx, tx)
	if err != nil {
		return err
	}
	return c.Work.EnqueueMany(ctx, tx, extension.ComposeKind, names)
}

// Refuse records a message that is not what it claims to be.
func Refuse(ctx context.Context, pool *store.Pool, d bus.Delivery, reason string) error {
	_, err := pool.Exec(ctx, `INSERT INTO mesh.refused_messages (queue, user_id, key, reason) VALUES ($1, $2, $3, left($4, 2000))`,
		d.Queue, d.UserID, d.Key, strings.ToValidUTF8(strings.ReplaceAll(reason, "\x00", ""), "\uFFFD"))
	if err != nil {
		return bus.Requeue(fmt.Errorf("record refused message: %w", err))
	}
	return nil
}

// onReport stores a report and hands it to whoever wants it, in one transaction.
func (i *Inventory) onReport(ctx context.Context, d bus.Delivery) error {
	node, topic, err := d.Reporter()
	if err != nil {
		return Refuse(ctx, i.host.Store, d, err.Error())
	}
	if topic != "" {
		return nil // nothing of ours speaks under a topic yet
	}
	report, err := schema.ParseReport("report", d.Body)
	if err != nil {
		return Refuse(ctx, i.host.Store, d, err.Error())
	}
	if report.Node != node {
		return Refuse(ctx, i.host.Store, d, fmt.Sprintf("the report of %s speaks of %s", node, report.Node))
	}
	err = i.host.Transact(ctx, func(tx pgx.Tx) error { return Report(ctx, i.host, tx, *report) })
	if errors.Is(err, errUnknownNode) {
		return Refuse(ctx, i.host.Store, d, err.Error())
	}
	if err != nil {
		if store.Unreachable(err) {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		return bus.Requeue(err)
	}
	return nil
}
