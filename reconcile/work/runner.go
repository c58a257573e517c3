package work

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/store"
)

//go:embed sql/due.sql
var dueSQL string

// Config of a runner. The zero durations and counts take their defaults.
type Config struct {
	Store       *store.Pool
	Queue       *Queue
	ID          string // of the process; unique among live ones
	Role        string // RoleControllers or RoleScheduler
	Reconcilers []Reconciler
	// Keys lists every node (ShardNode) or pool (ShardPool), for the resync.
	Keys        func(ctx context.Context, shardBy string) ([]string, error)
	Log         *slog.Logger
	LeaseTTL    time.Duration // 15 s
	FenceIdle   time.Duration // how long a fenced transaction may sit idle: as LeaseTTL
	Poll        time.Duration // 1 s
	Resync      time.Duration // 5 min, plus as much jitter
	Concurrency int           // runs at once per reconciler: 8
	// Observe is told of every run that has ended: DONE, SYNC_AGAIN, error or fenced.
	Observe func(reconciler, outcome string, took time.Duration)
}

// Runner runs the reconcilers of one role in this process.
type Runner struct {
	config  Config
	member  *membership
	leases  *Leases
	lanes   map[string]*lane
	created bool
	beating sync.Mutex
}

// lane is one reconciler with what this process is running of it.
type lane struct {
	Reconciler
	wake chan struct{}

	mu      sync.Mutex
	running map[string]bool // keys being run or about to be
}

// NewRunner prepares a runner of those reconcilers that have the config's role.
func NewRunner(config Config) *Runner {
	config = withDefaults(config)
	r := &Runner{config: config, lanes: map[string]*lane{}}
	r.leases = NewLeases(config.Store, config.ID, config.FenceIdle)
	worker := config.ID
	if config.Role != RoleControllers {
		worker = config.Role + "/" + config.ID
	}
	r.member = &membership{
		pool: config.Store, leases: r.leases, id: worker, role: config.Role,
		ttl: config.LeaseTTL, held: map[string]*holding{},
	}
	for _, reconciler := range config.Reconcilers {
		if reconciler.role() != config.Role {
			continue
		}
		r.lanes[reconciler.Name] = &lane{
			Reconciler: reconciler,
			wake:       config.Queue.register(reconciler.Name),
			running:    map[string]bool{},
		}
		if reconciler.ShardBy == ShardNone {
			r.member.singletons = append(r.member.singletons, singletonLease(reconciler.Name))
		} else {
			r.member.sharded = true
		}
	}
	return r
}

func withDefaults(c Config) Config {
	if c.Role == "" {
		c.Role = RoleControllers
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = 15 * time.Second
	}
	if c.FenceIdle == 0 {
		c.FenceIdle = c.LeaseTTL
	}
	if c.Poll == 0 {
		c.Poll = time.Second
	}
	if c.Resync == 0 {
		c.Resync = 5 * time.Minute
	}
	if c.Concurrency == 0 {
		c.Concurrency = 8
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Observe == nil {
		c.Observe = func(string, string, time.Duration) {}
	}
	return c
}

// Serve runs until ctx ends: it seeds the periodic keys, keeps the leases, listens, polls,
// resyncs and runs. When ctx ends the runs' contexts end; Serve returns when they have
// returned and the leases are given back.
func (r *Runner) Serve(ctx context.Context) {
	if len(r.lanes) == 0 {
		r.notify(ctx)
		return
	}
	var loops sync.WaitGroup
	loops.Go(func() { r.heart(ctx) })
	loops.Go(func() { r.listen(ctx) })
	loops.Go(func() { r.notify(ctx) })
	loops.Go(func() { r.resync(ctx) })
	for l := range maps.Values(r.lanes) {
		loops.Go(func() { r.serve(ctx, l) })
	}
	loops.Wait()
	parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := r.member.leave(parting); err != nil {
		r.config.Log.Warn("leases not given back", "error", err)
	}
}

// heart beats three times per lease.
func (r *Runner) heart(ctx context.Context) {
	for {
		if err := r.beat(ctx); err != nil && ctx.Err() == nil {
			r.config.Log.Warn("leases not renewed", "role", r.config.Role, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.config.LeaseTTL / 3):
		}
	}
}

func (r *Runner) beat(ctx context.Context) error {
	r.beating.Lock()
	defer r.beating.Unlock()
	if !r.created {
		if err := r.leases.create(ctx, r.member.all()); err != nil {
			return err
		}
		if err := r.seed(ctx); err != nil {
			return err
		}
		r.created = true
	}
	before := len(r.member.epochs())
	if err := r.member.beat(ctx); err != nil {
		return err
	}
	if len(r.member.epochs()) > before {
		r.config.Queue.pokeAll()
	}
	return nil
}

// seed makes each periodic key a row, once in the life of the mesh.
func (r *Runner) seed(ctx context.Context) error {
	for _, l := range r.lanes {
		for _, p := range l.Periodic {
			if _, err := r.config.Store.Exec(ctx, seedSQL, l.Name, p.Key, int16(ShardOf(p.Key))); err != nil {
				return fmt.Errorf("seed %s %s: %w", l.Name, p.Key, err)
			}
		}
	}
	return nil
}

// serve keeps up to Concurrency runs of one reconciler going. A poll reads more keys than
// that, so that a backlog does not cost one query per key.
func (r *Runner) serve(ctx context.Context, l *lane) {
	var runs sync.WaitGroup
	defer runs.Wait()
	slots := make(chan struct{}, r.config.Concurrency)
	poll := time.NewTicker(r.config.Poll)
	defer poll.Stop()
	for ctx.Err() == nil {
		claims, err := r.due(ctx, l)
		if err != nil && ctx.Err() == nil {
			r.config.Log.Warn("work not read", "reconciler", l.Name, "error", err)
		}
		for _, c := range claims {
			select {
			case <-ctx.Done():
				l.release(c.key)
				continue
			case slots <- struct{}{}:
			}
			runs.Go(func() {
				r.run(ctx, l, c)
				<-slots
				signal(l.wake)
			})
		}
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-poll.C:
		}
	}
}

// pollBatch is how many keys one poll reads at most.
const pollBatch = 256

// claim is a key read as due, under the lease it was read under.
type claim struct {
	key        string
	shard      int
	generation int64
	attempts   int
	lease      string
	held       *holding
}

// due reads due keys under the leases held and marks them as running.
func (r *Runner) due(ctx context.Context, l *lane) ([]claim, error) {
	shards := r.shards(l)
	if len(shards) == 0 {
		return nil, nil
	}
	// A key that is running when the query starts may have ended when its row is looked at;
	// its end wakes this lane again.
	busy := l.busy()
	perShard := max(8, pollBatch/len(shards)) + len(busy)
	rows, err := r.config.Store.Query(ctx, dueSQL, l.Name, shards, perShard, pollBatch+len(busy))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var claims []claim
	for rows.Next() {
		var c claim
		if err := rows.Scan(&c.key, &c.shard, &c.generation, &c.attempts); err != nil {
			return nil, err
		}
		if busy[c.key] {
			continue
		}
		c.lease = singletonLease(l.Name)
		if l.ShardBy != ShardNone {
			c.lease = shardLease(r.config.Role, c.shard)
		}
		held, ok := r.member.holds(c.lease)
		if !ok {
			continue
		}
		c.held = held
		claims = append(claims, c)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	l.take(claims)
	return claims, nil
}

// shards are those this worker may run keys of: all under a singleton's lease.
func (r *Runner) shards(l *lane) []int16 {
	if l.ShardBy != ShardNone {
		return r.member.shards()
	}
	if _, ok := r.member.holds(singletonLease(l.Name)); !ok {
		return nil
	}
	shards := make([]int16, Shards)
	for i := range shards {
		shards[i] = int16(i)
	}
	return shards
}

func (l *lane) busy() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.running)
}

func (l *lane) take(claims []claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claims {
		l.running[c.key] = true
	}
}

func (l *lane) release(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, key)
}

// Tick runs one batch of the named reconciler and returns how many keys it ran. It needs no
// Serve beside it: it takes the leases itself and watches no clock.
func (r *Runner) Tick(ctx context.Context, name string) (int, error) {
	l, ok := r.lanes[name]
	if !ok {
		return 0, fmt.Errorf("tick %s: %w", name, errNoReconciler)
	}
	if err := r.beat(ctx); err != nil {
		return 0, fmt.Errorf("tick %s: %w", name, err)
	}
	claims, err := r.due(ctx, l)
	if err != nil {
		return 0, fmt.Errorf("tick %s: %w", name, err)
	}
	for _, c := range claims {
		r.run(ctx, l, c)
	}
	return len(claims), nil
}

var errNoReconciler = errors.New("no reconciler of this name runs in this role")

// Has says whether the runner runs the named reconciler.
func (r *Runner) Has(name string) bool { return r.lanes[name] != nil }

// Leave gives the leases back that Tick has taken; Serve does so itself.
func (r *Runner) Leave(ctx context.Context) error { return r.member.leave(ctx) }
