package host

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/lock"
	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// Host is one node's reconciler. Make it with [Open], run it with [Host.Run], or take single
// steps with [Host.Accept] and [Host.Converge].
type Host struct {
	cfg        Config
	layout     Layout
	log        *slog.Logger
	identity   Identity
	lock       *os.File
	engine     *engine.Engine // nil without one
	supervisor *Supervisor
	owned      *ownership
	store      *store
	prober     *prober
	web        *http.Client
	wake       chan struct{} // something has changed: converge
	tell       chan struct{} // something a report shows has changed

	mu          sync.Mutex
	state       state
	declaration *schema.Declaration
	failures    map[string]failure
	statuses    []schema.ResourceStatus
	health      map[string]healthMark
	restarts    map[string]restartMark
}

// ErrRunning says that another host works on the same state directory.
var ErrRunning = errors.New("a host is already running here")

// Open prepares a host on its state directory, which it locks, and takes over what an earlier
// one left running.
func Open(cfg Config, layout Layout, log *slog.Logger) (*Host, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(layout.State, 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	held, err := lock.Exclusive(layout.state("lock"))
	if errors.Is(err, lock.ErrHeld) {
		err = fmt.Errorf("lock %s: %w", layout.State, ErrRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	h := &Host{
		cfg: cfg, layout: layout, log: log, lock: held, owned: openOwnership(layout),
		web: &http.Client{Transport: registry.IdleTimeout(http.DefaultTransport.(*http.Transport).Clone(), registry.DefaultIdle)}, wake: make(chan struct{}, 1), tell: make(chan struct{}, 1),
		failures: map[string]failure{}, health: map[string]healthMark{}, restarts: map[string]restartMark{},
	}
	if err := h.load(); err != nil {
		held.Close()
		return nil, err
	}
	return h, nil
}

func (h *Host) load() error {
	var err error
	if h.identity, err = LoadIdentity(h.layout); err != nil {
		return err
	}
	if h.state, err = loadState(h.layout); err != nil {
		h.log.Warn("the state cache is damaged; it is made anew from what is there", "error", err)
	}
	if h.declaration, err = loadDeclaration(h.layout); err != nil {
		h.log.Warn("the last declaration is damaged; nothing is changed until the next arrives", "error", err)
	}
	if d := h.declaration; d != nil && (d.Epoch > h.state.Epoch || d.Epoch == h.state.Epoch && d.Generation > h.state.Seen) {
		h.state.Epoch, h.state.Seen = d.Epoch, d.Generation
	}
	if h.cfg.Epoch > h.state.Epoch { // its generations begin anew
		h.state.Epoch, h.state.Seen, h.state.Applied, h.state.AppliedHash = h.cfg.Epoch, 0, 0, ""
	}
	if h.cfg.Engine != "" {
		if h.engine, err = engine.Open(h.cfg.Engine); err != nil {
			return err
		}
	}
	h.prober = newProber(h.engine)
	if h.supervisor, err = NewSupervisor(h.layout, h.log, h.stir, h.at); err != nil {
		return err
	}
	if h.store, err = openStore(h.cfg.proxyPort(), h.engine != nil, h.identity.Sealing, h.log); err != nil {
		h.supervisor.Close()
		return err
	}
	return nil
}

// Close lets go of everything. What the host made runs on.
func (h *Host) Close() {
	h.supervisor.Close()
	h.store.close()
	if h.store.proxy != nil {
		_ = h.store.proxy.Close()
	}
	if h.engine != nil {
		_ = h.engine.Close()
	}
	h.web.CloseIdleConnections()
	h.prober.web.CloseIdleConnections()
	h.lock.Close()
}

// stir asks for a look and a report.
func (h *Host) stir() {
	nudge(h.wake)
	nudge(h.tell)
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// remembered is the state as it is now.
func (h *Host) remembered() state {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state
	s.Held, s.Unproven = maps.Clone(s.Held), maps.Clone(s.Unproven)
	return s
}

// remember changes the state and keeps it on disk.
func (h *Host) remember(change func(*state)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.state)
	if err := writeJSON(h.layout.state(stateFile), h.state); err != nil {
		h.log.Error("write state", "error", err)
	}
}

func (h *Host) target() *schema.Declaration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.declaration
}

// Accept verifies a declaration and makes it the target, on disk before it returns. It does
// not apply it: see [Host.Converge]. [ErrOld] and [ErrRefused] say why it was not accepted.
func (h *Host) Accept(name string, data []byte) error {
	s := h.remembered()
	verifier := Verifier{Node: h.cfg.Node, Key: ed25519.PublicKey(h.cfg.DeclarationKey), Epoch: s.Epoch, Generation: s.Seen}
	if current := h.target(); current != nil && current.Generation == s.Seen && current.Epoch == s.Epoch {
		verifier.Hash = current.Hash
	}
	d, err := verifier.Verify(name, data)
	switch {
	case errors.Is(err, ErrOld):
		h.log.Info("an older declaration is passed over", "generation", d.Generation, "error", err)
		return err
	case err != nil:
		h.log.Error("a declaration is refused", "error", err)
		h.remember(func(s *state) { s.Refused, s.RefusedCause = claimedGeneration(data), err.Error() })
		nudge(h.tell)
		return err
	}
	if err := saveDeclaration(h.layout, d); err != nil {
		return fmt.Errorf("keep declaration: %w", err)
	}
	h.at(PointAccepted)
	again := d.Epoch == s.Epoch && d.Generation == s.Seen
	h.mu.Lock()
	h.declaration = &d
	h.mu.Unlock()
	h.remember(func(s *state) {
		s.Epoch, s.Seen = d.Epoch, d.Generation
		if !again {
			s.Refused, s.RefusedCause = 0, ""
			s.Held, s.Outcome, s.Cause = map[string]held{}, "", ""
		}
	})
	h.log.Info("declaration accepted", "node", d.Node, "generation", d.Generation, "epoch", d.Epoch)
	h.stir()
	return nil
}

// claimedGeneration is which generation a refused declaration says it is; 1 when it does not
// even say that. Nothing but the report of the refusal depends on it.
func claimedGeneration(data []byte) int64 {
	var claimed struct {
		Generation int64 `json:"generation"`
	}
	_ = json.Unmarshal(data, &claimed)
	return max(claimed.Generation, 1)
}

// Plan says what [Host.Converge] would do now.
func (h *Host) Plan(ctx context.Context) ([]Step, error) {
	d := h.target()
	if d == nil {
		return nil, nil
	}
	p, err := h.prepare(ctx, *d)
	return p.steps, err
}

// PlanFor says what accepting a declaration would lead to.
func (h *Host) PlanFor(ctx context.Context, name string, data []byte) ([]Step, error) {
	s := h.remembered()
	d, err := Verifier{Node: h.cfg.Node, Key: ed25519.PublicKey(h.cfg.DeclarationKey), Epoch: s.Epoch, Generation: s.Seen}.Verify(name, data)
	if err != nil {
		return nil, err
	}
	p, err := h.prepare(ctx, d)
	return p.steps, err
}

// Converge runs one pass towards the target, and says what came of it.
func (h *Host) Converge(ctx context.Context) (outcome, cause string, err error) {
	d := h.target()
	if d == nil {
		return "", "", nil
	}
	p, err := h.apply(ctx, *d)
	if err != nil {
		h.mu.Lock()
		h.failures = p.failures
		h.mu.Unlock()
		return OutcomeFailed, err.Error(), err
	}
	outcome, cause = p.outcome()
	h.mu.Lock()
	h.failures = p.failures
	h.mu.Unlock()
	if s := h.remembered(); s.Outcome != outcome || s.Cause != cause || outcome == OutcomeApplied && s.Applied != d.Generation {
		h.remember(func(s *state) {
			s.Outcome, s.Cause = outcome, cause
			if outcome == OutcomeApplied {
				s.Applied, s.AppliedHash = d.Generation, d.Hash
			}
		})
		h.log.Info("pass ended", "node", d.Node, "generation", d.Generation, "outcome", outcome, "cause", cause)
	}
	h.survey(ctx, p.wanted, p.paths)
	nudge(h.tell)
	return outcome, cause, nil
}

// Run converges whenever something changes, and follows the broker, until ctx ends. What the
// host made runs on.
func (h *Host) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts.Go(func() { h.store.serve(ctx) })
	parts.Go(func() { h.followEngine(ctx) })
	control, err := h.serveControl()
	if err != nil {
		return err
	}
	defer control()
	if h.cfg.Broker != nil {
		parts.Go(func() { h.followBroker(ctx) })
	}
	h.log.Info("host started", "node", h.cfg.Node, "state", h.layout.State, "version", h.cfg.Version)
	h.loop(ctx)
	return nil
}

// The pauses after passes that failed.
const (
	firstRetry = 3 * time.Second
	maxRetry   = time.Minute
)

func (h *Host) loop(ctx context.Context) {
	retry := firstRetry
	for {
		outcome, _, err := h.Converge(ctx)
		wait := surveyEvery
		if err != nil || outcome == OutcomeFailed {
			if err != nil && ctx.Err() == nil {
				h.log.Warn("pass broken off", "error", err)
			}
			wait = retry
			retry = min(2*retry, maxRetry)
		} else {
			retry = firstRetry
		}
		h.supervisor.TrimLogs()
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
			settle(ctx)
		case <-time.After(wait):
		}
	}
}

// settle lets a burst of events become one pass.
func settle(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}

// followEngine asks for a look whenever a container of ours starts or ends.
func (h *Host) followEngine(ctx context.Context) {
	if h.engine == nil {
		return
	}
	for ctx.Err() == nil {
		err := h.engine.Events(ctx, h.labels(), h.stir)
		if ctx.Err() != nil {
			return
		}
		h.log.Debug("engine events ended", "error", err)
		h.stir()
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
}

// Serve lets the engine pull through this host until ctx ends. Run does it by itself.
func (h *Host) Serve(ctx context.Context) { h.store.serve(ctx) }

// Look surveys the node once and reports, without changing anything.
func (h *Host) Look(ctx context.Context) schema.Report {
	if d := h.target(); d != nil {
		h.survey(ctx, h.want(*d), newPaths(h.layout, d.Resources))
	}
	return h.Report(ctx)
}
