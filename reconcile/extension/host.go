package extension

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/work"
)

var (
	//go:embed migrations/0010_outbox.sql
	outboxMigration string
	//go:embed migrations/0011_operators.sql
	operatorsMigration string
)

// schemaName is the database schema the controller owns.
const schemaName = "mesh"

// DefaultBasePath is where methods are served.
const DefaultBasePath = "/api/mesh"

// Config of a host. Only Extensions is needed to register; Store is needed to initialise.
type Config struct {
	Store      *store.Pool
	Extensions []Extension
	Plugins    []Extension // made by Plugin; registered after all extensions
	Log        *slog.Logger
	ID         string // of this process, unique among live ones; made up where empty
	Mesh       string // the mesh's name
	Version    string // of the controller
	BasePath   string // DefaultBasePath where empty
	Roles      []string
	// Table is the method table: route (group/method) to action. A method that disagrees is
	// refused; one that is missing is reported by SelfCheck. Nil checks nothing.
	Table map[string]string
	// Manual starts no workers: reconcilers run in Tick only.
	Manual bool
	// Work sets the workers' times and counts; its other fields are the host's.
	Work WorkConfig
}

// WorkConfig tunes the workers; zero values take the defaults of package work.
type WorkConfig struct {
	LeaseTTL    time.Duration
	Poll        time.Duration
	Resync      time.Duration
	Concurrency int
}

// Host is the controller's inside: extensions, their methods and their workers.
type Host struct {
	config     Config
	extensions []Extension
	context    *Context
	leases     *work.Leases
	queue      *work.Queue
	clock      *clock
	metrics    *metrics
	methods    map[string]*route // by route below the base path
	order      []string          // routes in registration order
	migrations []store.Migration
	actions    map[string]bool
	runners    []*work.Runner

	ready   atomic.Bool
	started []Extension
	stop    context.CancelFunc
	workers sync.WaitGroup
}

// route is a method in its place.
type route struct {
	Method
	owner  string
	plugin bool
	path   string
}

// New registers the extensions and checks everything that needs no database. Its error is an
// INVALID_CONFIG [api.Error] naming every problem.
func New(config Config) (*Host, error) {
	h := &Host{config: defaults(config), methods: map[string]*route{}}
	h.extensions = slices.Concat([]Extension{h.server()}, config.Extensions, config.Plugins)
	h.queue = work.NewQueue(h.config.ID)
	h.clock = &clock{}
	h.metrics = newMetrics()
	h.leases = work.NewLeases(h.config.Store, h.config.ID, portIdle)
	h.context = h.newContext()

	r := &registration{
		names: map[string]bool{}, routes: map[string]string{},
		reconcilers: map[string]string{}, actions: map[string]bool{},
	}
	for _, p := range config.Plugins {
		if !p.plugin {
			r.problem("plugin %q was not made by Plugin", p.Name)
		}
	}
	r.migrations = coreMigrations()
	// The host's own extension carries the reserved name server.
	r.checkCatalog(h.extensions[0])
	r.check(h.extensions[1:])
	h.migrations, h.actions = r.migrations, r.actions
	for _, e := range h.extensions {
		h.addMethods(r, e)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	h.newRunners()
	return h, nil
}

func defaults(c Config) Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.ID == "" {
		host, _ := os.Hostname()
		c.ID = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:6])
	}
	if c.BasePath == "" {
		c.BasePath = DefaultBasePath
	}
	if len(c.Roles) == 0 {
		c.Roles = []string{RoleControllers, RoleScheduler}
	}
	return c
}

func coreMigrations() []store.Migration {
	return append(work.Migrations(),
		store.Migration{Name: "core/0010_outbox", SQL: outboxMigration},
		store.Migration{Name: "core/0011_operators", SQL: operatorsMigration},
	)
}

func (h *Host) addMethods(r *registration, e Extension) {
	if e.API == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			r.problem("extension %s: its API panics: %v", e.Name, p)
		}
	}()
	for _, m := range e.API(h.context) {
		path := r.addRoute(e, m)
		h.methods[path] = &route{Method: m, owner: e.Name, plugin: e.plugin, path: path}
		h.order = append(h.order, path)
	}
}

func (h *Host) newRunners() {
	var reconcilers []work.Reconciler
	for _, e := range h.extensions {
		for _, r := range e.Reconcilers {
			reconcilers = append(reconcilers, h.adapt(r))
		}
	}
	for _, role := range h.config.Roles {
		h.runners = append(h.runners, work.NewRunner(work.Config{
			Store: h.config.Store, Queue: h.queue, ID: h.config.ID, Role: role,
			Reconcilers: reconcilers, Keys: h.keys, Log: h.config.Log, Observe: h.metrics.run,
			LeaseTTL: h.config.Work.LeaseTTL, Poll: h.config.Work.Poll,
			Resync: h.config.Work.Resync, Concurrency: h.config.Work.Concurrency,
		}))
	}
}

// adapt gives a reconciler's runs the extension context.
func (h *Host) adapt(r Reconciler) work.Reconciler {
	periodic := make([]work.Periodic, len(r.Periodic))
	for i, p := range r.Periodic {
		periodic[i] = work.Periodic(p)
	}
	return work.Reconciler{
		Name: r.Name, ShardBy: r.ShardBy, Role: r.Role, Periodic: periodic,
		Run: func(ctx context.Context, run *work.Run, key string) (string, error) {
			c := *h.context
			c.Transact = run.Tx
			c.Log = c.Log.With("reconciler", r.Name, "key", key)
			return r.Run(ctx, &Run{Context: &c, Shard: run.Shard, Lease: run.Lease, Epoch: run.Epoch, Tx: run.Tx}, key)
		},
	}
}

// keys lists what sharded reconcilers are resynced with.
func (h *Host) keys(ctx context.Context, shardBy string) ([]string, error) {
	var keys []string
	for _, e := range h.extensions {
		switch {
		case shardBy == ShardNode && e.Nodes != nil:
			nodes, err := e.Nodes(ctx, h.context)
			if err != nil {
				return nil, err
			}
			for _, n := range nodes {
				keys = append(keys, n.Name)
			}
		case shardBy == ShardPool && e.Pools != nil:
			return e.Pools(ctx, h.context)
		}
	}
	return keys, nil
}

// Initialize checks the methods against the catalog and the table, migrates, anchors the
// clock, starts the extensions in order and then the workers. Where a Start fails, those
// already started are stopped, in reverse, and its error is returned.
func (h *Host) Initialize(ctx context.Context) error {
	if err := h.checkMethods(); err != nil {
		return err
	}
	if err := store.Migrate(ctx, h.config.Store, schemaName, h.migrations); err != nil {
		return err
	}
	if err := h.clock.anchor(ctx, h.config.Store); err != nil {
		return err
	}
	for _, e := range h.extensions {
		if err := h.start(ctx, e); err != nil {
			return errors.Join(fmt.Errorf("start %s: %w", e.Name, err), h.stopExtensions(context.WithoutCancel(ctx)))
		}
	}
	if !h.config.Manual {
		h.startWorkers()
	}
	h.ready.Store(true)
	return nil
}

// checkMethods needs the whole catalog, so it runs when everything is registered; it touches
// no database.
func (h *Host) checkMethods() error {
	r := &registration{}
	for _, path := range h.order {
		m := h.methods[path]
		if !h.actions[m.Action] {
			r.problem("extension %s: method %s: no catalog has its action %s", m.owner, path, m.Action)
		}
		if want, ok := h.config.Table[path]; ok && want != m.Action {
			r.problem("extension %s: method %s: the method table says %s, not %s", m.owner, path, want, m.Action)
		}
	}
	return r.err()
}

func (h *Host) start(ctx context.Context, e Extension) error {
	if e.Start != nil {
		if err := e.Start(ctx, h.context); err != nil {
			return err
		}
	}
	h.started = append(h.started, e)
	return nil
}

func (h *Host) startWorkers() {
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	for _, runner := range h.runners {
		h.workers.Go(func() { runner.Serve(ctx) })
	}
}

// Stop refuses new calls, ends the workers and then stops the extensions, in reverse.
func (h *Host) Stop(ctx context.Context) error {
	h.ready.Store(false)
	var errs []error
	if h.stop != nil {
		h.stop()
		h.workers.Wait()
	} else if len(h.started) > 0 {
		for _, runner := range h.runners {
			errs = append(errs, runner.Leave(ctx))
		}
	}
	errs = append(errs, h.stopExtensions(ctx))
	return errors.Join(errs...)
}

func (h *Host) stopExtensions(ctx context.Context) error {
	var errs []error
	for _, e := range slices.Backward(h.started) {
		if e.Stop == nil {
			continue
		}
		if err := e.Stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", e.Name, err))
		}
	}
	h.started = nil
	return errors.Join(errs...)
}

// Tick runs one batch of the named reconciler and answers how many keys it ran.
func (h *Host) Tick(ctx context.Context, reconciler string) (int, error) {
	for _, runner := range h.runners {
		if runner.Has(reconciler) {
			return runner.Tick(ctx, reconciler)
		}
	}
	return 0, &api.Error{Code: api.CodeNotFound, Message: "no reconciler " + reconciler + " runs in this process"}
}

// Names lists the registered extensions in order; the first is the host's own, server.
func (h *Host) Names() []string {
	names := make([]string, len(h.extensions))
	for i, e := range h.extensions {
		names[i] = e.Name
	}
	return names
}

// Context is the one the hooks get, for programs that wire parts of their own.
func (h *Host) Context() *Context { return h.context }

// Ready says whether every Start has returned and Stop has not begun.
func (h *Host) Ready() bool { return h.ready.Load() }

// Sections asks every extension for its share of a node's declaration, in order, and merges.
func (h *Host) Sections(ctx context.Context, node Node) (Section, error) {
	var sections []Section
	for _, e := range h.extensions {
		if e.Section == nil {
			continue
		}
		s, err := e.Section(ctx, h.context, node)
		if err != nil {
			return Section{}, fmt.Errorf("section of %s for node %s: %w", e.Name, node.Name, err)
		}
		sections = append(sections, s)
	}
	return Merge(sections...), nil
}

func (h *Host) hosted(name string) bool {
	return slices.Contains(h.Names(), name)
}

func (h *Host) transact(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return work.Transact(ctx, h.config.Store, fn)
}
