package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// collectPath is where the embedded registry is asked to collect its garbage. No other has it.
const collectPath = "/mesh/v1/collect"

// MinGrace is the least time that what nothing names stays on the disk: a publication sends
// its blobs first and what names them last.
const MinGrace = time.Hour

// collectAnswer is how long a request waits for a collection to end before it is told that it
// still runs.
const collectAnswer = 20 * time.Second

// Collected is what a collection freed, or would.
type Collected struct {
	Blobs int   `json:"blobs"` // that no manifest names
	Bytes int64 `json:"bytes"` // of those
	Young int   `json:"young"` // blobs that no manifest names and that are not old enough
}

// Collection is one run of the collector.
type Collection struct {
	ID      int64 `json:"id"`
	Running bool  `json:"running"`
	Collected
	Error string `json:"error,omitempty"`
}

// collector runs one collection at a time.
type collector struct {
	store *heldStore
	log   *slog.Logger

	mu      sync.Mutex // of the next two
	last    *collectRun
	ids     int64
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

type collectRun struct {
	id    int64
	ended chan struct{} // closed when the rest holds
	did   Collected
	err   error
}

func newCollector(store *heldStore, log *slog.Logger) *collector {
	ctx, stop := context.WithCancel(context.Background())
	return &collector{store: store, log: log, ctx: ctx, stop: stop}
}

// close ends a collection under way; the next one goes on where it was.
func (c *collector) close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.running.Wait()
}

// ServeHTTP begins a collection, or waits for the one that runs. The query says grace, a
// duration; dry=1 removes nothing; run is the id of a run whose answer is waited for.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	grace, err := time.ParseDuration(query.Get("grace"))
	if err != nil || grace < MinGrace {
		refuse(w, http.StatusBadRequest, "UNSUPPORTED", "grace must be a duration of at least "+MinGrace.String())
		return
	}
	run := c.begin(query.Get("run"), grace, query.Get("dry") == "1")
	answer := Collection{ID: run.id, Running: true}
	timer := time.NewTimer(collectAnswer)
	defer timer.Stop()
	select {
	case <-run.ended:
		answer.Running, answer.Collected = false, run.did
		if run.err != nil {
			answer.Error = run.err.Error()
		}
	case <-timer.C:
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// begin gives the run of an id, the one that is under way, or a new one.
func (c *collector) begin(id string, grace time.Duration, dry bool) *collectRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil {
		select {
		case <-c.last.ended:
			if id == fmt.Sprint(c.last.id) {
				return c.last
			}
		default:
			return c.last
		}
	}
	c.ids++
	run := &collectRun{id: c.ids, ended: make(chan struct{})}
	c.last = run
	c.running.Go(func() {
		defer close(run.ended)
		started := time.Now()
		run.did, run.err = c.store.collect(c.ctx, started.Add(-grace), dry)
		if run.err != nil {
			c.log.Error("garbage not collected", "error", run.err)
		} else if !dry {
			c.log.Info("garbage collected", "blobs", run.did.Blobs, "bytes", run.did.Bytes, "took", time.Since(started))
		}
	})
	return run
}
