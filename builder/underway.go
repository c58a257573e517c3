package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/schema"
)

// DefaultGrace is how long a build goes on without its delivery.
const DefaultGrace = time.Minute

// underway is the one build of a worker. It outlives the delivery it came by: a broker that
// loses patience, or a connection that is lost, delivers the same request again, and that
// delivery is given this build instead of another.
type underway struct {
	id, body string
	cancel   context.CancelCauseFunc
	done     chan struct{}
	result   schema.Result // once done is closed
	lost     *time.Timer   // cancels it when no delivery comes; nil while there is one
}

// errElsewhere is the cause of a build's end when its request went to another builder.
var errElsewhere = errors.New("the delivery was lost, and the request did not come again")

// take gives the build of a delivery: the one under way, if it is of this very request, else
// a new one, before which any other has ended. Deliveries come one after another.
func (w *Worker) take(ctx context.Context, d bus.Delivery) *underway {
	if u := w.current; u != nil && u.id == d.CorrelationID && u.body == string(d.Body) && u.lost.Stop() {
		u.lost = nil
		w.Log.Info("request came again, its build goes on", "build", u.id, "attempt", d.Attempts)
		return u
	}
	w.drop()
	// Not the delivery's context, which ends with the delivery's channel.
	building, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	u := &underway{id: d.CorrelationID, body: string(bytes.Clone(d.Body)), cancel: cancel, done: make(chan struct{})}
	w.current = u
	go func() {
		defer close(u.done)
		defer w.measure.begun()()
		u.result = w.build(building, d)
		w.measure.ended(u.result)
	}()
	return u
}

// wait is until the build has ended, or its delivery.
func (u *underway) wait(ctx context.Context) error {
	select {
	case <-u.done:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave keeps a build whose delivery was lost, for the next one of the same request.
func (w *Worker) leave(u *underway, why error) error {
	grace := w.Grace
	if grace == 0 {
		grace = DefaultGrace
	}
	u.lost = time.AfterFunc(grace, func() { u.cancel(errElsewhere) })
	w.Log.Warn("build has lost its delivery", "build", u.id, "error", why, "grace", grace)
	return bus.Requeue(fmt.Errorf("build %s: %w", u.id, why))
}

// drop ends the build under way, if there is one, and forgets it.
func (w *Worker) drop() {
	u := w.current
	if u == nil {
		return
	}
	if u.lost != nil {
		u.lost.Stop()
	}
	u.cancel(errElsewhere)
	<-u.done
	w.current = nil
}
