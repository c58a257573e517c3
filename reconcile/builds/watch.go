package builds

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/schema"
)

// The limits of a watch.
const (
	watchFor  = 10 * time.Second
	watchPoll = time.Second // beneath the news, for what another process recorded
	ringSize  = 4096
)

// news is what was heard of builds lately: a ring of progress, and a wake-up for watchers.
type news struct {
	mu       sync.Mutex
	sequence int64
	ring     []heard
	changed  chan struct{}
}

type heard struct {
	sequence int64
	progress schema.Progress
}

func newNews() *news { return &news{changed: make(chan struct{})} }

// tell records progress, if there is any, and wakes the watchers.
func (n *news) tell(_ string, progress *schema.Progress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if progress != nil {
		n.sequence++
		n.ring = append(n.ring, heard{n.sequence, *progress})
		if len(n.ring) > ringSize {
			n.ring = slices.Clone(n.ring[len(n.ring)-ringSize:])
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

// since gives the progress of the builds after the cursor, the new cursor, and what closes
// when there is more.
func (n *news) since(cursor int64, ids []string) ([]schema.Progress, int64, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if cursor > n.sequence {
		cursor = 0 // of another process
	}
	var out []schema.Progress
	for _, h := range n.ring {
		if h.sequence > cursor && slices.Contains(ids, h.progress.ID) {
			out = append(out, h.progress)
		}
	}
	return out, n.sequence, n.changed
}

// onReply hears everything builders say. A result only wakes: it is recorded from its own
// queue.
func (b *Builds) onReply(ctx context.Context, d bus.Delivery) error {
	builder, err := d.Builder()
	if err != nil {
		return b.refuse(ctx, d, err.Error())
	}
	if d.Key == bus.KeyBuildResult {
		b.news.tell(d.CorrelationID, nil)
		return nil
	}
	var progress schema.Progress
	if err := json.Unmarshal(d.Body, &progress); err != nil || progress.ID != d.CorrelationID {
		return b.refuse(ctx, d, "progress that cannot be read, or of another build")
	}
	if err := b.noteStart(ctx, progress.ID, builder); err != nil {
		b.config.Log.Warn("start of build not recorded", "build", progress.ID, "error", err)
	}
	b.news.tell(progress.ID, &progress)
	return nil
}

// noteStart records who works on a build, once per process and build.
func (b *Builds) noteStart(ctx context.Context, id, builder string) error {
	b.mu.Lock()
	known := b.started[id]
	if len(b.started) > ringSize {
		clear(b.started)
	}
	b.started[id] = true
	b.mu.Unlock()
	if known {
		return nil
	}
	_, err := b.host.Store.Exec(ctx, `
UPDATE mesh.builds SET started_at = coalesce(started_at, clock_timestamp()), builder = $2
WHERE id = $1 AND outcome = ''`, id, builder)
	return err
}

// watch waits until there is progress, or a build's state is not what it was at first.
func (b *Builds) watch(ctx context.Context, c *extension.Context, in api.BuildWatchIn) (api.BuildWatchOut, error) {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	out := api.BuildWatchOut{Progress: []schema.Progress{}}
	var before string
	for round := 0; ; round++ {
		progress, cursor, changed := b.news.since(in.Cursor, in.IDs)
		builds, err := list(context.WithoutCancel(ctx), c.Store, `WHERE id = ANY($1) ORDER BY requested_at, id`, in.IDs)
		if err != nil {
			return out, err
		}
		states, open := "", false
		for _, build := range builds {
			states += build.State + " "
			open = open || build.Ended.IsZero()
		}
		if round == 0 {
			before = states
		}
		if len(progress) > 0 || !open || states != before || ctx.Err() != nil {
			out.Builds, out.Cursor = builds, cursor
			out.Progress = append(out.Progress, progress...)
			out.Consumers = b.consumers(context.WithoutCancel(ctx))
			return out, nil
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(watchPoll):
		}
	}
}
