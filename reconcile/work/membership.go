package work

import (
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
)

var (
	//go:embed sql/worker_beat.sql
	workerBeatSQL string
	//go:embed sql/worker_live.sql
	workerLiveSQL string
	//go:embed sql/worker_bury.sql
	workerBurySQL string
)

// membership is a worker's place among the workers of its role: the leases it holds, kept
// up by beats.
type membership struct {
	pool       *store.Pool
	leases     *Leases
	id         string // of the worker row
	role       string
	sharded    bool     // takes part in the spreading of shards
	singletons []string // lease names it asks for besides
	ttl        time.Duration

	mu   sync.Mutex
	held map[string]*holding
}

// holding is a lease held. Its context ends when the lease is lost or given back.
type holding struct {
	epoch  int64
	until  time.Time // by this process's clock; the fence decides, this only saves work
	ctx    context.Context
	cancel context.CancelFunc
}

// shardLease is the lease's name of a role's shard.
func shardLease(role string, shard int) string {
	if role == RoleControllers {
		return "shard:" + strconv.Itoa(shard)
	}
	return role + "/shard:" + strconv.Itoa(shard)
}

func singletonLease(name string) string { return "singleton:" + name }

// beat tells that this worker lives, renews what it holds, gives back shards that now belong
// to others and takes what is free of its own.
func (m *membership) beat(ctx context.Context) error {
	before := time.Now()
	wanted, err := m.wanted(ctx)
	if err != nil {
		return err
	}
	kept, err := m.leases.renew(ctx, m.epochs(), m.ttl)
	if err != nil {
		return err
	}
	surplus := m.settle(kept, wanted, before.Add(m.ttl))
	if err := m.leases.release(ctx, surplus); err != nil {
		return err
	}
	var missing []string
	for _, name := range wanted {
		if _, ok := kept[name]; !ok {
			missing = append(missing, name)
		}
	}
	before = time.Now()
	taken, err := m.leases.take(ctx, missing, m.ttl)
	if err != nil {
		return err
	}
	m.add(taken, before.Add(m.ttl))
	return nil
}

// wanted names the leases this worker should hold, given who lives.
func (m *membership) wanted(ctx context.Context) ([]string, error) {
	wanted := append([]string(nil), m.singletons...)
	if !m.sharded {
		return wanted, nil
	}
	if _, err := m.pool.Exec(ctx, workerBeatSQL, m.id, m.role, m.ttl); err != nil {
		return nil, fmt.Errorf("beat as worker %s: %w", m.id, err)
	}
	rows, err := m.pool.Query(ctx, workerLiveSQL, m.role)
	if err != nil {
		return nil, fmt.Errorf("list live workers: %w", err)
	}
	live, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list live workers: %w", err)
	}
	for shard := range Shards {
		if Owner(live, shard) == m.id {
			wanted = append(wanted, shardLease(m.role, shard))
		}
	}
	return wanted, nil
}

// all names every lease this worker may ever ask for, in order.
func (m *membership) all() []string {
	names := append([]string(nil), m.singletons...)
	if m.sharded {
		for shard := range Shards {
			names = append(names, shardLease(m.role, shard))
		}
	}
	return names
}

// settle forgets what was lost and answers what is to be given back.
func (m *membership) settle(kept map[string]int64, wanted []string, until time.Time) map[string]int64 {
	want := map[string]bool{}
	for _, name := range wanted {
		want[name] = true
	}
	surplus := map[string]int64{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, h := range m.held {
		_, ours := kept[name]
		switch {
		case ours && want[name]:
			h.until = until
		case ours:
			surplus[name] = h.epoch
			fallthrough
		default:
			h.cancel()
			delete(m.held, name)
		}
	}
	return surplus
}

func (m *membership) add(taken map[string]int64, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, epoch := range taken {
		ctx, cancel := context.WithCancel(context.Background())
		m.held[name] = &holding{epoch: epoch, until: until, ctx: ctx, cancel: cancel}
	}
}

func (m *membership) epochs() map[string]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	epochs := make(map[string]int64, len(m.held))
	for name, h := range m.held {
		epochs[name] = h.epoch
	}
	return epochs
}

// holds answers the holding of a lease, if this worker has it and it has not run out.
func (m *membership) holds(name string) (*holding, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.held[name]
	if !ok || time.Now().After(h.until) {
		return nil, false
	}
	return h, true
}

// shards lists the shards held, in order.
func (m *membership) shards() []int16 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var shards []int16
	for shard := range Shards {
		if h, ok := m.held[shardLease(m.role, shard)]; ok && now.Before(h.until) {
			shards = append(shards, int16(shard))
		}
	}
	return shards
}

// leave gives everything back, so that others need not wait for the leases to expire.
func (m *membership) leave(ctx context.Context) error {
	surplus := m.settle(m.epochs(), nil, time.Time{})
	if err := m.leases.release(ctx, surplus); err != nil {
		return err
	}
	if _, err := m.pool.Exec(ctx, workerBurySQL, m.id); err != nil {
		return fmt.Errorf("leave as worker %s: %w", m.id, err)
	}
	return nil
}

// Owner is the worker that ranks first for a shard, "" where none lives. Adding or removing
// a worker moves only the shards it gains or had.
func Owner(workers []string, shard int) string {
	var owner string
	var best uint64
	for _, worker := range workers {
		h := fnv.New64a()
		h.Write([]byte(worker))
		h.Write([]byte{0, byte(shard)})
		rank := mix(h.Sum64())
		if owner == "" || rank > best || rank == best && worker < owner {
			owner, best = worker, rank
		}
	}
	return owner
}

// mix spreads FNV's last byte over all bits (the finaliser of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
