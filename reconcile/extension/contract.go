package extension

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/work"
	"github.com/mesh-control/mesh/schema"
)

// Extension is the unit the control plane is made of. Name is the one mandatory field.
type Extension struct {
	Name       string
	Requires   []string // names that must also be registered, in any position
	Migrations []store.Migration
	// API returns the methods; called once, while the registry is built.
	API            func(*Context) []Method
	Reconcilers    []Reconciler
	Section        func(context.Context, *Context, Node) (Section, error)
	StatusHandlers []StatusHandler
	Catalog        Catalog
	SelfCheck      func(context.Context, *Context) ([]api.Finding, error) // read-only
	Start          func(context.Context, *Context) error
	Stop           func(context.Context) error

	// Nodes lists every node, and Pools the id of every pool: what sharded reconcilers are
	// resynced with. At most one extension gives each.
	Nodes func(context.Context, *Context) ([]Node, error)
	Pools func(context.Context, *Context) ([]string, error)

	plugin   bool
	pluginID string
}

// Plugin makes an extension a plugin: its methods are served under plugins/<id>/ and its
// actions are mesh:<id>:<verb>. Its name is its id unless it has one.
func Plugin(id string, e Extension) Extension {
	e.plugin, e.pluginID = true, id
	if e.Name == "" {
		e.Name = id
	}
	return e
}

// Catalog names the actions and resource types an extension adds.
type Catalog struct {
	Actions       []string
	ResourceTypes []string
}

// The outcomes of a reconciler's run.
const (
	Done      = work.Done
	SyncAgain = work.SyncAgain
)

// How a reconciler's keys are spread over workers.
const (
	ShardNode = work.ShardNode
	ShardPool = work.ShardPool
	ShardNone = work.ShardNone
)

// The roles of a process.
const (
	RoleControllers = work.RoleControllers
	RoleScheduler   = work.RoleScheduler
)

// ComposeKind is the reconciler that composes a node's declaration; its key is the node's
// name. Desired.Invalidate enqueues it.
const ComposeKind = "node.compose"

// Reconciler is a level-triggered worker on the work queue; its name is its work kind.
type Reconciler struct {
	Name     string
	ShardBy  string
	Run      func(ctx context.Context, run *Run, key string) (string, error)
	Periodic []Periodic
	Role     string // "controllers" (default) or "scheduler"
}

// Periodic is a key seeded once that comes back Every after each run (at least 1 s).
type Periodic struct {
	Key   string
	Every time.Duration
}

// Run is what one run of a reconciler holds. Every transaction it opens through Tx (or
// through its Transact, which is the same) begins by fencing its lease.
type Run struct {
	*Context
	Shard int    // -1 where ShardBy is none
	Lease string // the lease's name
	Epoch int64
	Tx    func(ctx context.Context, fn func(tx pgx.Tx) error) error
}

// Node is a node as sections are asked for it.
type Node struct {
	Name   string
	Labels map[string]string
}

// Section is an extension's share of one node's declaration. What is left out erases
// nothing of others'; see Merge for the rules.
type Section struct {
	Modules   map[string]string
	Resources []schema.Resource
	Host      schema.HostSection
	Devices   schema.DeviceSection
	Instances []json.RawMessage
	Site      schema.SiteSection
	Daemon    json.RawMessage
}

// StatusHandler consumes a node's report inside the transaction that stores it, under a
// savepoint of its own.
type StatusHandler func(ctx context.Context, c *Context, tx pgx.Tx, report schema.Report) error

// Context is what hooks, handlers and reconcilers reach the rest of the system through.
type Context struct {
	Store   *store.Pool
	Work    Work
	Events  Events
	Desired Desired
	Leases  Leases
	Clock   Clock
	Log     *slog.Logger
	// Transact runs fn in one transaction, with AfterCommit hooks. In a reconciler it fences,
	// in a SelfCheck it is read-only.
	Transact func(ctx context.Context, fn func(tx pgx.Tx) error) error
	// AfterCommit runs a hook once the outermost transaction commits, never on rollback. The
	// transaction must come from Transact, a run's Tx or a method's Tx; others panic. Hooks
	// carry pokes and memory only: a process that dies before its hook must lose nothing.
	AfterCommit func(tx pgx.Tx, hook func())
	// Sections asks every extension for its share of a node's declaration and merges them.
	Sections func(ctx context.Context, node Node) (Section, error)
	// HandleReport gives a report to every status handler, each under a savepoint of tx.
	HandleReport func(ctx context.Context, tx pgx.Tx, report schema.Report) error
	// Hosted says whether an extension of this name is registered.
	Hosted func(name string) bool
}

// Clock is business time: the database's (mesh_now), read once and carried on by this
// process's monotonic clock, so that moving the wall clock moves nothing.
type Clock interface {
	Now() time.Time
}

// Work wakes reconcilers, in the given transaction.
type Work interface {
	Enqueue(ctx context.Context, tx pgx.Tx, kind, key string, notBefore time.Time) error
	EnqueueMany(ctx context.Context, tx pgx.Tx, kind string, keys []string) error
}

// Events appends to the outbox, in the given transaction.
type Events interface {
	Publish(ctx context.Context, tx pgx.Tx, events ...Event) error
}

// Event is one entry of the outbox.
type Event struct {
	Type    string
	Subject string
	Data    any
}

// Desired recomputes a node's declaration, from the given transaction's commit on.
type Desired interface {
	Invalidate(ctx context.Context, tx pgx.Tx, node string) error
}

// Leases hands a named lease to one holder at a time, with an epoch that only grows.
type Leases interface {
	Acquire(ctx context.Context, name string, ttl time.Duration) (epoch int64, ok bool, err error)
	Release(ctx context.Context, name string, epoch int64) error
	// Fence fails the transaction of a holder whose epoch has passed.
	Fence(ctx context.Context, tx pgx.Tx, name string, epoch int64) error
}
