package host

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

// The phases of a resource, as a report gives them.
const (
	PhaseApplied  = "applied"
	PhaseRunning  = "running"
	PhaseStarting = "starting"
	PhaseFailing  = "failing"
	PhaseFailed   = "failed"
	PhaseStopped  = "stopped"
)

// healthMark is the last answer of a health check.
type healthMark struct {
	at  time.Time
	err error
}

// restartMark follows a container's count of restarts, to see a loop.
type restartMark struct {
	container string
	count     int
	times     []time.Time
}

// survey brings the statuses up to date with one look at everything wanted.
func (h *Host) survey(ctx context.Context, wanted []Wanted, p paths) {
	s, err := h.look(ctx, wanted)
	if err != nil {
		return
	}
	h.probeAll(ctx, wanted, s, p)
	statuses := make([]schema.ResourceStatus, 0, len(wanted))
	for _, w := range wanted {
		statuses = append(statuses, h.status(ctx, w, s))
	}
	h.mu.Lock()
	h.statuses = statuses
	h.mu.Unlock()
}

// probeAll runs the health checks that are due, side by side.
func (h *Host) probeAll(ctx context.Context, wanted []Wanted, s sight, p paths) {
	var probing sync.WaitGroup
	for _, w := range wanted {
		if w.Health == nil || !s.observed.Items[w.ID].Running {
			continue
		}
		interval := defaultInterval
		if w.Health.Interval > 0 {
			interval = time.Duration(w.Health.Interval) * time.Second
		}
		h.mu.Lock()
		due := time.Since(h.health[w.ID].at) >= interval || h.health[w.ID].err != nil
		h.mu.Unlock()
		if !due {
			continue
		}
		probing.Go(func() {
			pass := &pass{Host: h, paths: p}
			err := h.prober.probe(ctx, *pass.realHealth(w), s.containers[w.ID].ID)
			h.mu.Lock()
			h.health[w.ID] = healthMark{at: time.Now(), err: err}
			h.mu.Unlock()
		})
	}
	probing.Wait()
}

func (h *Host) status(ctx context.Context, w Wanted, s sight) schema.ResourceStatus {
	status := schema.ResourceStatus{ID: w.ID, Type: w.Type}
	item := s.observed.Items[w.ID]
	switch w.Type {
	case schema.TypeContainer:
		h.containerStatus(ctx, &status, w, s)
	case schema.TypeService:
		h.serviceStatus(&status, w, s)
	default:
		status.Phase, status.Drift = PhaseApplied, item.Drift
		if w.Type == schema.TypeArchive {
			status.Digest = w.Digest
		}
		if item.Spec != w.Spec {
			status.Phase, status.Digest = PhaseFailed, ""
		}
	}
	h.mu.Lock()
	f, failed := h.failures[w.ID]
	if one, isHeld := h.state.Held[w.ID]; isHeld && one.Spec == w.Spec {
		f, failed = failure{cause: "put back: " + one.Cause, back: true}, true
	}
	h.mu.Unlock()
	if failed {
		if !f.back && status.Phase != PhaseRunning && status.Phase != PhaseFailing {
			status.Phase = PhaseFailed
		}
		status.Message = f.cause
	}
	return status
}

func (h *Host) containerStatus(ctx context.Context, status *schema.ResourceStatus, w Wanted, s sight) {
	c, ok := s.containers[w.ID]
	if !ok {
		status.Phase = PhaseFailed
		return
	}
	looping := h.countRestarts(w.ID, c)
	v := vitalOf(c)
	status.Digest, status.Restarts, status.Since, status.LastExit = c.Reference, c.Restarts, c.Started, v.exit
	if _, digest, found := strings.Cut(c.Reference, "@"); found {
		status.Digest = digest
	}
	h.livePhase(status, w, v, looping)
	if status.Phase == PhaseFailing && status.Message == "" {
		status.Message = h.engine.Tail(ctx, c.ID, 10)
	}
}

func (h *Host) serviceStatus(status *schema.ResourceStatus, w Wanted, s sight) {
	service, ok := s.services[w.ID]
	if !ok {
		status.Phase = PhaseFailed
		return
	}
	v := serviceVital(service)
	status.Restarts, status.Since, status.LastExit = service.Restarts, service.Since, service.LastExit
	h.livePhase(status, w, v, service.Looping)
	switch {
	case v.problem != "":
		status.Phase, status.Message = PhaseFailed, v.problem
	case status.Phase == PhaseFailing && status.Message == "":
		status.Message = h.supervisor.Tail(w.ID)
	}
}

// livePhase judges what runs: being up is not enough.
func (h *Host) livePhase(status *schema.ResourceStatus, w Wanted, v vital, looping bool) {
	h.mu.Lock()
	mark, checked := h.health[w.ID]
	h.mu.Unlock()
	switch {
	case v.ended && v.exit != nil && *v.exit != 0:
		status.Phase = PhaseFailed
	case v.ended:
		status.Phase = PhaseStopped
	case !v.running, looping:
		status.Phase = PhaseFailing
	case w.Health != nil && !checked:
		status.Phase = PhaseStarting
	case w.Health != nil && mark.err != nil:
		status.Phase, status.Message = PhaseFailing, mark.err.Error()
	default:
		status.Phase = PhaseRunning
	}
}

// countRestarts notes when a container's count of restarts grows. Of one seen for the first
// time the restarts count when the last was a moment ago.
func (h *Host) countRestarts(id string, c engine.Container) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	mark := h.restarts[id]
	if mark.container != c.ID || c.Restarts < mark.count {
		mark = restartMark{container: c.ID}
		if time.Since(c.Started) > loopWindow {
			mark.count = c.Restarts
		}
	}
	for range min(c.Restarts-mark.count, loopRestarts) {
		mark.times = append(mark.times, time.Now())
	}
	mark.count = c.Restarts
	mark.times = mark.times[max(0, len(mark.times)-loopRestarts):]
	h.restarts[id] = mark
	return looping(mark.times)
}

// CapabilityContainers is reported while a container engine answers.
const CapabilityContainers = "container-runtime"

// Report says what the host knows of its node, with a sequence number that only grows.
func (h *Host) Report(ctx context.Context) schema.Report {
	h.remember(func(s *state) { s.Sequence++ })
	capabilities := h.capabilities(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	r := schema.Report{
		Schema: schema.Version, Node: h.cfg.Node, Epoch: h.state.Epoch, Seen: h.state.Seen,
		Applied: h.state.Applied, AppliedHash: h.state.AppliedHash, Sequence: h.state.Sequence,
		Outcome: h.state.Outcome, Cause: h.state.Cause,
		Resources: append([]schema.ResourceStatus{}, h.statuses...), Capabilities: capabilities,
		Agent: schema.Agent{
			Version: h.cfg.Version, Schema: schema.Version, Clock: time.Now().UTC(),
			Platform: runtime.GOOS + "/" + runtime.GOARCH, Address: h.cfg.Address,
			DiskFree: freeSpace(h.layout.State), MemoryFree: memoryFree(),
		},
	}
	if r.Refused = h.state.Refused; r.Refused > 0 {
		r.Outcome, r.Cause = OutcomeRefused, h.state.RefusedCause
	}
	return r
}

// capabilities asks the engine, which may take its time, so nothing is locked meanwhile.
func (h *Host) capabilities(ctx context.Context) []string {
	found := []string{}
	if h.engine != nil {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if h.engine.Ping(ctx) == nil {
			found = append(found, CapabilityContainers)
		}
	}
	return found
}

// memoryFree is what the kernel thinks can still be used, in bytes.
func memoryFree() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, found := strings.CutPrefix(line, "MemAvailable:"); found {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// Summary is a status in one line.
func Summary(r schema.Report) string {
	running := 0
	for _, one := range r.Resources {
		if one.Phase == PhaseRunning || one.Phase == PhaseApplied || one.Phase == PhaseStopped {
			running++
		}
	}
	return fmt.Sprintf("%s: generation %d applied, %d seen, %d of %d resources well, last pass %s",
		r.Node, r.Applied, r.Seen, running, len(r.Resources), r.Outcome)
}
