package builder

import (
	"context"
	"errors"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
)

// errCancelled is the cause of a build's context when somebody cancelled the build, apart
// from a delivery that ended, which makes the build another builder's.
var errCancelled = errors.New("the build was cancelled")

// Pauses of asking whether a build was cancelled, and how long one question may take.
const (
	cancelPause = time.Second
	cancelWait  = 2 * time.Second
)

// heedCancel gives a context that ends, with errCancelled, once the build is cancelled. It
// has asked once before it returns, so that a build cancelled while it waited never begins.
func (w *Worker) heedCancel(ctx context.Context, id string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if w.cancelled(ctx, id) {
		cancel(errCancelled)
		return ctx, func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(cancelPause)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if w.cancelled(ctx, id) {
				w.Log.Info("build is cancelled", "build", id)
				cancel(errCancelled)
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// cancelled asks the broker: the question finds a queue only when the build is cancelled. No
// answer is no cancellation; the next question comes soon.
func (w *Worker) cancelled(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, cancelWait)
	defer cancel()
	return w.Bus.Publish(ctx, bus.Message{
		Exchange: bus.Answers, Key: bus.KeyBuildCancelled(id), CorrelationID: id, Type: "build.cancelled", Body: []byte(`{}`),
	}) == nil
}
