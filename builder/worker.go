package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/schema"
)

// progressBuffer is how many lines may wait for the broker before newer ones are dropped. The
// result has the log's tail whatever was dropped.
const progressBuffer = 512

// Worker takes builds from the queue, one at a time. A job is acknowledged only after the
// broker confirmed its result, so a builder that dies leaves the job to another. A build that
// outlasts the broker's patience with an acknowledgement goes on, and answers the request's
// next delivery.
type Worker struct {
	Builder *Builder
	Bus     *bus.Conn
	Log     *slog.Logger
	// Grace is how long a build goes on without its delivery; zero is DefaultGrace.
	Grace time.Duration

	current *underway
	measure *metrics
}

// Measure counts builds where an operator's tools read them. It comes before Run.
func (w *Worker) Measure(registry prometheus.Registerer) { w.measure = newMetrics(registry) }

// Run works until the context ends. A build under way then is given back to the queue.
func (w *Worker) Run(ctx context.Context) error {
	if w.Log == nil {
		w.Log = slog.New(slog.DiscardHandler)
	}
	defer w.drop()
	return w.Bus.Consume(ctx, bus.Builds, 1, w.handle)
}

// handle answers one delivery. Its context ends when the delivery's channel closes: then the
// broker gives the request to a builder again. When that is this one the build has gone on;
// until then it announces nothing, and without its request it ends.
func (w *Worker) handle(ctx context.Context, d bus.Delivery) error {
	u := w.take(ctx, d)
	if u.wait(ctx) != nil {
		return w.leave(u, context.Cause(ctx))
	}
	result := u.result
	if err := w.announce(ctx, d, result); err != nil {
		return w.leave(u, err)
	}
	w.drop()
	w.Log.Info("build ended", "build", result.ID, "module", result.Module, "outcome", result.Outcome, "manifest", result.Digest)
	return nil
}

// build reads the job and makes it. What cannot be read is refused, with the correlation id
// it came under.
func (w *Worker) build(ctx context.Context, d bus.Delivery) schema.Result {
	job, err := schema.ParseJob("job", d.Body)
	if err == nil && d.CorrelationID != "" && job.ID != d.CorrelationID {
		err = fmt.Errorf("job %q came under the correlation id %q", job.ID, d.CorrelationID)
	}
	if err != nil {
		now := time.Now().UTC()
		return schema.Result{
			Schema: schema.Version, ID: d.CorrelationID, Outcome: schema.OutcomeRefused, Builder: w.Builder.Name, Started: now, Ended: now,
			Error: &schema.BuildError{Reason: ReasonMalformedJob, Message: err.Error(), Remedy: "bring builder and controller to one release"},
		}
	}
	w.Log.Info("build begins", "build", job.ID, "repository", job.Repository, "path", job.Path, "attempt", d.Attempts)
	live := w.progress(ctx, job.ID)
	defer live.close()
	// Progress goes on under the whole build's context: a cancelled build still says so.
	building, stop := w.heedCancel(ctx, job.ID)
	defer stop()
	return w.Builder.Build(building, *job, live.send)
}

// announce publishes the result and returns once the broker has it.
func (w *Worker) announce(ctx context.Context, d bus.Delivery, result schema.Result) error {
	if w.Builder.OnPhase != nil {
		w.Builder.OnPhase(schema.PhaseAnnounce)
	}
	body, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encode result of build %s: %w", result.ID, err)
	}
	id := d.CorrelationID
	if id == "" {
		id = result.ID
	}
	err = w.Bus.Publish(ctx, bus.Message{
		Exchange: bus.Answers, Key: bus.KeyBuildResult, CorrelationID: id, Type: "build.result", Body: body,
	})
	if err != nil {
		return fmt.Errorf("announce build %s: %w", result.ID, err)
	}
	return nil
}

// live carries progress to the broker beside the build, so that a slow broker costs lines and
// not time.
type live struct {
	lines   chan schema.Progress
	dropped atomic.Int64
	done    chan struct{}
}

func (w *Worker) progress(ctx context.Context, id string) *live {
	l := &live{lines: make(chan schema.Progress, progressBuffer), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for p := range l.lines {
			if n := l.dropped.Swap(0); n > 0 {
				left := p
				left.Line = fmt.Sprintf("… %d lines left out here", n)
				w.sendProgress(ctx, id, left)
			}
			w.sendProgress(ctx, id, p)
		}
	}()
	return l
}

func (w *Worker) sendProgress(ctx context.Context, id string, p schema.Progress) {
	body, err := json.Marshal(p)
	if err != nil {
		return
	}
	err = w.Bus.Publish(ctx, bus.Message{
		Exchange: bus.Answers, Key: bus.KeyBuildProgress(id), CorrelationID: id, Type: "build.progress", Body: body,
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, bus.ErrUnrouted) { // unrouted: nobody listens
		w.Log.Debug("progress not sent", "build", id, "error", err)
	}
}

func (l *live) send(p schema.Progress) {
	select {
	case l.lines <- p:
	default:
		l.dropped.Add(1)
	}
}

// close waits until what was said is sent, so that no progress comes after the result.
func (l *live) close() {
	close(l.lines)
	<-l.done
}
