package work

import (
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
)

// Shards is how many parts keys are divided into.
const Shards = 256

// channel is the notification channel. Its payload is the sender, so that a process does not
// wake itself twice; it is the same for every notification of a process.
const channel = "mesh_work"

var (
	//go:embed migrations/0001_work.sql
	workMigration string
	//go:embed sql/enqueue.sql
	enqueueSQL string
	//go:embed sql/seed.sql
	seedSQL string
)

// Migrations are the tables of this package, owned by core.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "core/0001_work", SQL: workMigration}}
}

// ShardOf is the shard of a key: FNV-1a of 32 bits, modulo [Shards].
func ShardOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % Shards)
}

// CheckKey says what is wrong with a key; nil for 1 to 512 characters.
func CheckKey(key string) error {
	if key == "" || !utf8.ValidString(key) || utf8.RuneCountInString(key) > 512 {
		return fmt.Errorf("work key %.40q: must have 1 to 512 characters", key)
	}
	return nil
}

// Queue enqueues keys and wakes the workers of its process when they are committed.
type Queue struct {
	id    string
	mu    sync.Mutex
	wakes map[string]chan struct{} // by kind, while a worker of this process runs it
	tell  chan struct{}            // a notification is owed to other processes
}

// NewQueue returns a queue of the process called id.
func NewQueue(id string) *Queue {
	return &Queue{id: id, wakes: map[string]chan struct{}{}, tell: make(chan struct{}, 1)}
}

// Enqueue makes key due, at notBefore or at once if that is zero or past. A key that is
// queued already is raised by a generation; it becomes due earlier, never later.
func (q *Queue) Enqueue(ctx context.Context, tx pgx.Tx, kind, key string, notBefore time.Time) error {
	var after *time.Time
	if !notBefore.IsZero() {
		after = &notBefore
	}
	return q.enqueue(ctx, tx, kind, []string{key}, after)
}

// EnqueueMany makes keys due at once. They are written in order, so that two writers of
// many keys do not lock each other out.
func (q *Queue) EnqueueMany(ctx context.Context, tx pgx.Tx, kind string, keys []string) error {
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	return q.enqueue(ctx, tx, kind, slices.Compact(sorted), nil)
}

func (q *Queue) enqueue(ctx context.Context, tx pgx.Tx, kind string, keys []string, after *time.Time) error {
	if len(keys) == 0 {
		return nil
	}
	shards := make([]int16, len(keys))
	for i, key := range keys {
		if err := CheckKey(key); err != nil {
			return fmt.Errorf("enqueue %s: %w", kind, err)
		}
		shards[i] = int16(ShardOf(key))
	}
	if _, err := tx.Exec(ctx, enqueueSQL, kind, keys, shards, after); err != nil {
		return fmt.Errorf("enqueue %s: %w", kind, err)
	}
	if t, ok := tx.(*transaction); ok {
		t.hooks = append(t.hooks, func() { q.poke(kind) })
		return nil
	}
	// A transaction that has no hooks notifies with its commit.
	if _, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, channel); err != nil {
		return fmt.Errorf("notify workers: %w", err)
	}
	return nil
}

// poke wakes this process's workers of kind and owes the others a notification.
func (q *Queue) poke(kind string) {
	q.mu.Lock()
	wake := q.wakes[kind]
	q.mu.Unlock()
	signal(wake)
	signal(q.tell)
}

// pokeAll wakes every worker of this process.
func (q *Queue) pokeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, wake := range q.wakes {
		signal(wake)
	}
}

// register returns the channel that is signalled when a key of kind becomes due.
func (q *Queue) register(kind string) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	wake := make(chan struct{}, 1)
	q.wakes[kind] = wake
	return wake
}

// signal never blocks: a signal that waits already says as much.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
