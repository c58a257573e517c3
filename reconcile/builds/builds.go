package builds

import (
	"context"
	"embed"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/reconcile/secrets"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Config of the extension.
type Config struct {
	Bus     *bus.Conn
	Admin   bus.Admin
	Secrets *secrets.Secrets
	// Client names this process's reply queue; unique among live controllers.
	Client string
	// Toolchains are the versions builders are expected to compile with, by language.
	Toolchains map[string]string
	// BrokerAddress is host:port as nodes reach the broker, and Fingerprint its pin.
	BrokerAddress string
	Fingerprint   string
	// Upstreams is asked what borrowed tags mean, every UpstreamInterval; nil and 0 ask nobody.
	Upstreams        func() (Upstreams, error)
	UpstreamInterval time.Duration
	Log              *slog.Logger
}

// Builds asks for builds and keeps what came of them.
type Builds struct {
	config  Config
	news    *news
	host    *extension.Context
	running sync.WaitGroup
	stop    context.CancelFunc

	mu      sync.Mutex
	started map[string]bool // builds whose start this process has recorded
}

// New makes the extension's state; it talks to nobody before Start.
func New(config Config) *Builds {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Builds{config: config, news: newNews(), started: map[string]bool{}}
}

// Migrations of the extension, also for whoever adopts a mesh before a controller runs.
func Migrations() []store.Migration { return store.Embedded(migrationFiles, "builds") }

// Extension is what the controller registers.
func (b *Builds) Extension() extension.Extension {
	e := extension.Extension{
		Name:       "builds",
		Requires:   []string{"inventory", "secrets"},
		Migrations: Migrations(),
		API:        func(*extension.Context) []extension.Method { return b.methods() },
		Reconcilers: []extension.Reconciler{
			{Name: workPublish, ShardBy: extension.ShardNone, Run: b.publish},
			{Name: workCancel, ShardBy: extension.ShardNone, Run: b.tellCancelled},
			{Name: workRecipients, ShardBy: extension.ShardNone, Run: b.registerBuilders, Periodic: []extension.Periodic{{Key: "all", Every: time.Minute}}},
			{Name: workSweep, ShardBy: extension.ShardNone, Run: b.sweep, Periodic: []extension.Periodic{{Key: "sweep", Every: 15 * time.Second}}},
		},
		Catalog:   extension.Catalog{Actions: actions, ResourceTypes: []string{"build", "module", "repository"}},
		SelfCheck: b.selfCheck,
		Start:     b.start,
		Stop:      b.end,
	}
	if b.config.Upstreams != nil && b.config.UpstreamInterval > 0 {
		e.Reconcilers = append(e.Reconcilers, extension.Reconciler{
			Name: workUpstreams, ShardBy: extension.ShardNone, Run: b.lookUpstreams,
			Periodic: []extension.Periodic{{Key: "all", Every: b.config.UpstreamInterval}},
		})
	}
	return e
}

var actions = []string{
	api.BuildRequest.Action, api.BuildList.Action, api.BuildCancel.Action, api.ModuleList.Action,
	api.RepositoryAdd.Action, api.RepositoryList.Action, api.RepositoryRemove.Action, api.RepositoryRefresh.Action,
	api.RepositorySuspend.Action, api.ModuleSuspend.Action, api.RepositoryCredential.Action, api.RepositoryHook.Action,
	api.BuilderIssue.Action, api.BuilderList.Action,
}

func (b *Builds) methods() []extension.Method {
	type mc = extension.MethodContext
	plain := extension.Options{}
	waits := extension.Options{LongPoll: true}
	return []extension.Method{
		extension.Handle(api.BuildRequest, plain, func(ctx context.Context, c *mc, in api.BuildRequestIn) (api.BuildRequestOut, error) {
			return b.request(ctx, c.Context, c.Tx, c.Caller.Name, in)
		}),
		extension.Handle(api.BuildList, plain, func(ctx context.Context, c *mc, in api.BuildListIn) (api.BuildListOut, error) {
			return b.list(ctx, c.Tx, in)
		}),
		extension.Handle(api.BuildShow, plain, func(ctx context.Context, c *mc, in api.BuildShowIn) (api.BuildShowOut, error) {
			return b.show(ctx, c.Tx, in)
		}),
		extension.Handle(api.BuildCancel, plain, func(ctx context.Context, c *mc, in api.BuildCancelIn) (api.Build, error) {
			return b.cancel(ctx, c.Context, c.Tx, c.Caller.Name, in)
		}),
		extension.Handle(api.BuildWatch, waits, func(ctx context.Context, c *mc, in api.BuildWatchIn) (api.BuildWatchOut, error) {
			return b.watch(ctx, c.Context, in)
		}),
		extension.Handle(api.ModuleList, plain, func(ctx context.Context, c *mc, _ api.None) (api.ModuleListOut, error) {
			modules, err := b.Statuses(ctx, c.Tx)
			return api.ModuleListOut{Modules: modules}, err
		}),
		extension.Handle(api.RepositoryAdd, plain, func(ctx context.Context, c *mc, in api.RepositoryAddIn) (api.Repository, error) {
			return addRepository(ctx, c.Tx, in)
		}),
		extension.Handle(api.RepositoryList, plain, func(ctx context.Context, c *mc, _ api.None) (api.RepositoryListOut, error) {
			return listRepositories(ctx, c.Tx)
		}),
		extension.Handle(api.RepositoryRemove, plain, func(ctx context.Context, c *mc, in api.RepositoryRef) (api.None, error) {
			return api.None{}, requestRepository(ctx, c.Tx, "request_remove_repository", in.URL)
		}),
		extension.Handle(api.RepositoryRefresh, plain, func(ctx context.Context, c *mc, in api.RepositoryRef) (api.None, error) {
			return api.None{}, requestRepository(ctx, c.Tx, "request_refresh_repository", in.URL)
		}),
		extension.Handle(api.RepositorySuspend, plain, func(ctx context.Context, c *mc, in api.RepositorySuspendIn) (api.None, error) {
			return api.None{}, requestRepository(ctx, c.Tx, "request_suspend_repository", in.URL, in.Suspended)
		}),
		extension.Handle(api.RepositoryCredential, plain, func(ctx context.Context, c *mc, in api.RepositoryCredentialIn) (api.RepositoryCredentialOut, error) {
			return setCredential(ctx, c.Tx, in)
		}),
		extension.Handle(api.RepositoryCredentialRemove, plain, func(ctx context.Context, c *mc, in api.RepositoryRef) (api.None, error) {
			return api.None{}, removeSecret(ctx, c.Tx, in.URL, pki.RepositoryCredential)
		}),
		extension.Handle(api.RepositoryHook, plain, func(ctx context.Context, c *mc, in api.RepositoryHookIn) (api.RepositoryHookOut, error) {
			return setHook(ctx, c.Tx, in)
		}),
		extension.Handle(api.RepositoryHookRemove, plain, func(ctx context.Context, c *mc, in api.RepositoryRef) (api.None, error) {
			return api.None{}, removeSecret(ctx, c.Tx, in.URL, pki.RepositoryHook)
		}),
		extension.Handle(api.ModuleSuspend, plain, func(ctx context.Context, c *mc, in api.ModuleSuspendIn) (api.None, error) {
			return api.None{}, b.suspendModule(ctx, c.Tx, c.Caller.Name, in)
		}),
		extension.Handle(api.BuilderIssue, plain, func(ctx context.Context, c *mc, in api.NodeRef) (api.BuilderIssueOut, error) {
			return b.issue(ctx, c.Context, c.Tx, in.Node)
		}),
		extension.Handle(api.BuilderList, waits, func(ctx context.Context, c *mc, _ api.None) (api.BuilderListOut, error) {
			builders, err := b.Builders(ctx, c.Store)
			return api.BuilderListOut{Builders: builders}, err
		}),
	}
}

// start declares the queues once the broker answers, and listens. It waits for no broker:
// the database is the record, and reading it must work while the broker is away.
func (b *Builds) start(_ context.Context, c *extension.Context) error {
	b.host = c
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	reply := bus.ReplyTopology(b.config.Client)
	reply.Queues[0].Bindings = append(reply.Queues[0].Bindings, bus.Binding{Exchange: bus.Answers, Key: bus.KeyBuildProgress("*")})
	b.running.Go(func() {
		for _, topology := range []bus.Topology{bus.MeshTopology(), reply} {
			if err := bus.Declare(ctx, b.config.Bus, topology); err != nil && ctx.Err() == nil {
				b.config.Log.Error("queues not declared", "error", err)
			}
		}
		for queue, handle := range map[string]func(context.Context, bus.Delivery) error{
			bus.BuildResults:                b.onResult,
			bus.BuildsDead:                  b.onDead,
			bus.ReplyQueue(b.config.Client): b.onReply,
		} {
			b.running.Go(func() {
				if err := b.config.Bus.Consume(ctx, queue, 16, handle); err != nil && ctx.Err() == nil {
					b.config.Log.Error("queue not read", "queue", queue, "error", err)
				}
			})
		}
	})
	return nil
}

func (b *Builds) end(context.Context) error {
	if b.stop != nil {
		b.stop()
		b.running.Wait()
	}
	return nil
}

// consumers is how many builders take work at this moment; 0 also while the broker is away.
func (b *Builds) consumers(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	state, err := b.config.Bus.Inspect(ctx, bus.Builds)
	if err != nil {
		return 0
	}
	return state.Consumers
}

// Queue is how many builds have no result yet.
func (b *Builds) Queue(ctx context.Context, pool *store.Pool) (int, error) {
	var open int
	err := pool.QueryRow(ctx, `SELECT count(*) FROM mesh.builds WHERE outcome = ''`).Scan(&open)
	return open, err
}

func (b *Builds) selfCheck(ctx context.Context, c *extension.Context) ([]api.Finding, error) {
	var findings []api.Finding
	if state := b.config.Bus.State(); !state.Publishing || !state.Consuming || state.Blocked != "" {
		findings = append(findings, api.Finding{
			Check: "broker.connection", Severity: extension.SeverityError,
			Message: strings.TrimSpace("the broker is not usable " + state.Blocked + " " + state.LastError), Fix: "look at the broker's log",
		})
	}
	open, err := b.Queue(ctx, c.Store)
	if err != nil {
		return findings, err
	}
	if open > 0 && b.consumers(ctx) == 0 {
		findings = append(findings, api.Finding{
			Check: "builds.no-builder", Severity: extension.SeverityWarning, Count: open,
			Message: "builds wait and no builder takes work", Fix: "assign the module builder to a node, then mesh builder issue --node N and mesh push N",
		})
	}
	var refused int
	if err := c.Store.QueryRow(ctx, `SELECT count(*) FROM mesh.refused_messages`).Scan(&refused); err != nil {
		return findings, err
	}
	if refused > 0 {
		findings = append(findings, api.Finding{
			Check: "broker.refused-messages", Severity: extension.SeverityWarning, Count: refused,
			Message: "messages arrived that were not what they claimed to be", Fix: "look at mesh.refused_messages; revoke the account named there if it is not yours",
		})
	}
	for _, check := range []func(context.Context, inventory.Queryer) ([]api.Finding, error){checkCatalogue, checkUpstreams} {
		found, err := check(ctx, c.Store)
		if err != nil {
			return findings, err
		}
		findings = append(findings, found...)
	}
	return findings, nil
}
