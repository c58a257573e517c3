package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// Limits bound what a container or an image build uses. Zero is no limit.
type Limits struct {
	Memory    int64   // bytes; swap is not added to it
	CPUs      float64 // processors
	Processes int64   // of one container, or of one step of an image build
}

// limitSteps bounds the processes of the steps of an image build until stop is called. The
// engine takes no such limit with a build, so each step's container is given it as it starts:
// a step that forks without end gets no further than it did in that moment.
func (e *Engine) limitSteps(ctx context.Context, processes int64, log func(string)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	events := e.api.Events(ctx, client.EventsListOptions{
		Since:   fmt.Sprint(time.Now().Add(-time.Second).Unix()),
		Filters: e.ours().Add("type", "container").Add("event", "start"),
	})
	ended := make(chan struct{})
	var failure error
	note := func(err error) {
		if failure == nil && ctx.Err() == nil {
			failure = err
		}
	}
	go func() {
		defer close(ended)
		for {
			select {
			case err := <-events.Err:
				note(err)
				return
			case m := <-events.Messages:
				_, err := e.api.ContainerUpdate(ctx, m.Actor.ID, client.ContainerUpdateOptions{
					Resources: &container.Resources{PidsLimit: &processes},
				})
				if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) { // else it has ended
					note(err)
				}
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		if failure != nil {
			log("processes of its steps were not limited: " + failure.Error())
		}
	}
}

// Root is the directory the engine keeps everything in, on its own machine.
func (e *Engine) Root(ctx context.Context) (string, error) {
	res, err := e.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", fmt.Errorf("ask container engine %s about itself: %w", e.api.DaemonHost(), err)
	}
	return res.Info.DockerRootDir, nil
}
