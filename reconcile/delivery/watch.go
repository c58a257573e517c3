package delivery

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
)

// The limits of a watch.
const (
	watchFor  = 10 * time.Second
	watchPoll = 500 * time.Millisecond // beneath the wake-ups, for what another process recorded
)

// changed wakes whoever watches.
func (d *Delivery) changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.news)
	d.news = make(chan struct{})
}

func (d *Delivery) wake() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.news
}

// watch waits until every node has settled on its generation, or something changed, or for a
// while.
func (d *Delivery) watch(ctx context.Context, c *extension.Context, in api.DeliveryWatchIn) (api.DeliveryWatchOut, error) {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	names := slices.Sorted(maps.Keys(in.Generations))
	var before string
	for round := 0; ; round++ {
		wake := d.wake()
		all, err := readFacts(context.WithoutCancel(ctx), c.Store, names)
		if err != nil {
			return api.DeliveryWatchOut{}, err
		}
		out := api.DeliveryWatchOut{Nodes: []api.NodePush{}, Done: true}
		states := ""
		for _, f := range all {
			push, settled := f.settled(in.Generations[f.name], c.Clock.Now())
			out.Nodes = append(out.Nodes, push)
			out.Done = out.Done && settled
			states += push.State + " "
		}
		if round == 0 {
			before = states
		}
		if out.Done || states != before || ctx.Err() != nil {
			return out, nil
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-time.After(watchPoll):
		}
	}
}

// settled says what became of a generation on a node, and whether there is anything to wait
// for: not on a node that is silent. A newer generation that the node has seen settles an
// older one.
func (f facts) settled(generation int64, now time.Time) (api.NodePush, bool) {
	push := api.NodePush{Node: f.name, Generation: generation, State: "waiting", Blocked: f.blocked}
	if f.heard {
		push.LastReport = f.received
	}
	switch {
	case !f.heard:
		push.Message = "its host has never reported; it takes what was pushed when it does"
		return push, true
	case f.report.Refused == generation:
		push.State, push.Message = StateRefused, f.report.Cause
		return push, true
	case f.report.Applied >= generation:
		push.State = StateApplied
		if f.report.Seen == generation && isFailure(f.report.Outcome) {
			push.State, push.Message = f.report.Outcome, f.report.Cause
		}
		return push, true
	case f.report.Seen >= generation && isFailure(f.report.Outcome):
		push.State, push.Message = f.report.Outcome, f.report.Cause
		return push, true
	case now.Sub(f.received) > SilentAfter:
		push.Message = "its host is silent, last heard " + f.received.UTC().Format(time.RFC3339) + "; it takes what was pushed when it is back"
		return push, true
	case f.report.Seen < generation:
		push.Message = "sent, and not seen by its host yet"
	default:
		push.Message = "seen, and not applied yet"
	}
	return push, false
}
