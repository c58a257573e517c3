package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

// The outcomes of a pass, as a report gives them.
const (
	OutcomeApplied    = "applied"
	OutcomeRolledBack = "rolled-back"
	OutcomeFailed     = "failed"
	OutcomeRefused    = "refused"
)

// pass is one run of plan, stage, switch, observe, settle.
type pass struct {
	*Host
	declaration schema.Declaration
	wanted      []Wanted
	paths       paths
	sight       sight
	steps       []Step

	replaced map[string]string // archives switched in this pass: id to the version before

	mu       sync.Mutex
	failures map[string]failure
	proofs   map[string]chan struct{} // closed when the resource has proved itself or failed
	proving  sync.WaitGroup
}

// failure is why a resource is not what was declared.
type failure struct {
	cause  string
	back   bool // its previous version runs
	notice bool // it waits for another's failure
}

// apply brings the machine to the declaration as far as it will go, and says what came of it.
func (h *Host) apply(ctx context.Context, d schema.Declaration) (*pass, error) {
	if err := h.store.follow(d); err != nil {
		h.log.Warn("the artifact-store cannot be used", "error", err)
	}
	p, err := h.prepare(ctx, d)
	if err != nil {
		return p, err
	}
	if len(p.steps) > 0 {
		h.log.Info("apply", "node", d.Node, "generation", d.Generation, "steps", len(p.steps))
	}
	p.stage(ctx)
	h.at(PointStaged)
	for _, step := range p.steps {
		if ctx.Err() != nil {
			break
		}
		p.run(ctx, step)
	}
	p.proving.Wait()
	h.at(PointSettled)
	return p, ctx.Err()
}

// prepare looks and plans, and changes nothing that was declared.
func (h *Host) prepare(ctx context.Context, d schema.Declaration) (*pass, error) {
	p := &pass{
		Host: h, declaration: d, wanted: h.want(d), paths: newPaths(h.layout, d.Resources),
		failures: map[string]failure{}, proofs: map[string]chan struct{}{},
		replaced: map[string]string{},
	}
	var err error
	if p.sight, err = h.look(ctx, p.wanted); err != nil {
		return p, err
	}
	p.steps = Plan(p.wanted, p.sight.observed, h.rules(d))
	return p, nil
}

// rules of a pass: what was changed by hand is put back when a new generation comes, and
// otherwise only when the declaration's host.config says "repair": true.
func (h *Host) rules(d schema.Declaration) Rules {
	held := map[string]string{}
	for id, one := range h.remembered().Held {
		held[id] = one.Spec
	}
	fresh := h.remembered().Applied != d.Generation || h.remembered().Epoch != d.Epoch
	return Rules{Repair: fresh || string(d.Host.Config["repair"]) == "true", Held: held}
}

// stage fetches everything that a step will need, before the first one is taken.
func (p *pass) stage(ctx context.Context) {
	for _, c := range p.sight.leftovers {
		if err := p.engine.Remove(ctx, c.ID); err != nil {
			p.log.Warn("remove an unfinished container", "resource", c.Resource(), "error", err)
		}
	}
	p.adopt()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(3)
	for _, step := range p.steps {
		w, declared := p.find(step.ID)
		if !declared || !slices.Contains([]Action{Create, Update, Replace}, step.Action) {
			continue
		}
		group.Go(func() error {
			var err error
			switch w.Type {
			case schema.TypeArchive:
				err = p.stageArchive(ctx, w)
			case schema.TypeContainer:
				err = p.stageImage(ctx, w)
			}
			if err != nil {
				p.fail(w.ID, failure{cause: err.Error()})
			}
			return nil
		})
	}
	_ = group.Wait()
}

// adopt records what is ours by its looks and missing from the record.
func (p *pass) adopt() {
	for _, w := range p.wanted {
		item := p.sight.observed.Items[w.ID]
		if item.Made && item.Spec == w.Spec && p.owned.get(w.ID).Type == "" && w.Path != "" {
			p.note(p.owned.set(w.ID, owned{Type: w.Type, Path: p.layout.Path(w.Path), Spec: w.Spec}))
		}
	}
}

func (p *pass) note(err error) {
	if err != nil {
		p.log.Error("record what this host made", "error", err)
	}
}

func (p *pass) stageImage(ctx context.Context, w Wanted) error {
	reference := p.store.image(w.Image)
	if _, have := p.engine.HasImage(ctx, reference); have {
		return nil
	}
	return p.engine.Pull(ctx, reference)
}

func (p *pass) find(id string) (Wanted, bool) {
	at := slices.IndexFunc(p.wanted, func(w Wanted) bool { return w.ID == id })
	if at < 0 {
		return Wanted{}, false
	}
	return p.wanted[at], true
}

func (p *pass) fail(id string, f failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, already := p.failures[id]; !already {
		p.failures[id] = f
		p.log.Warn("resource failed", "node", p.cfg.Node, "resource", id, "generation", p.declaration.Generation, "error", f.cause)
	}
}

func (p *pass) failed(id string) (failure, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, ok := p.failures[id]
	return f, ok
}

// run takes one step, after what it comes after has proved itself.
func (p *pass) run(ctx context.Context, step Step) {
	if step.Action == Refuse {
		p.fail(step.ID, failure{cause: step.Reason})
		return
	}
	w, declared := p.find(step.ID)
	if step.Action == Remove || step.Action == Forget {
		p.remove(ctx, step)
		return
	}
	if !declared {
		return
	}
	if _, already := p.failed(w.ID); already {
		return
	}
	if before, broken := p.waits(w); broken && step.Action != Start {
		p.fail(w.ID, failure{cause: "waits for " + before + ", which failed", notice: true})
		return
	}
	err := p.take(ctx, step, w)
	if err != nil {
		p.fail(w.ID, failure{cause: err.Error()})
	}
}

// waits waits for what w comes after, and names one that is not there.
func (p *pass) waits(w Wanted) (string, bool) {
	for _, id := range after(w) {
		p.mu.Lock()
		proof := p.proofs[id]
		p.mu.Unlock()
		if proof != nil {
			<-proof
		}
		if f, failed := p.failed(id); failed && !f.back && !p.inPlace(id) {
			return id, true
		}
	}
	return "", false
}

// inPlace says that an earlier version of a failed resource, which worked, is still there.
func (p *pass) inPlace(id string) bool {
	item := p.sight.observed.Items[id]
	return item.Spec != "" && !item.Unproven && (item.Running || item.Type != schema.TypeContainer && item.Type != schema.TypeService)
}

func (p *pass) take(ctx context.Context, step Step, w Wanted) error {
	switch w.Type {
	case schema.TypeDirectory:
		return p.switchDirectory(w)
	case schema.TypeFile:
		return p.switchFile(w)
	case schema.TypeArchive:
		p.replaced[w.ID], _ = os.Readlink(p.layout.Path(w.Path))
		if err := p.switchArchive(w); err != nil {
			return err
		}
		return p.place(w)
	case schema.TypeContainer:
		return p.switchContainer(ctx, step, w)
	case schema.TypeService:
		return p.switchService(ctx, step, w)
	}
	return fmt.Errorf("unknown type %q", w.Type)
}

func (p *pass) switchDirectory(w Wanted) error {
	made, err := makeDirectory(p.layout.Path(w.Path), w.Mode, w.Owner)
	if err != nil {
		return err
	}
	if made || p.owned.get(w.ID).Path != "" {
		return p.place(w)
	}
	return nil
}

func (p *pass) switchFile(w Wanted) error {
	mode, err := parseMode(w.Mode, defaultFileMode(w.Resource))
	if err != nil {
		return err
	}
	by, err := parseOwner(w.Owner)
	if err != nil {
		return err
	}
	name := p.layout.Path(w.Path)
	if err := makeParents(name); err != nil {
		return err
	}
	if err := writeFile(name, w.Content, mode, by); err != nil {
		return err
	}
	p.at(PointFile)
	return p.place(w)
}

// place records a path as made, and takes away where the resource was before.
func (p *pass) place(w Wanted) error {
	name, before := p.layout.Path(w.Path), p.owned.get(w.ID)
	if before.Path != "" && before.Path != name && before.Type == w.Type {
		if err := removePath(before); err != nil {
			return err
		}
	}
	return p.owned.set(w.ID, owned{Type: w.Type, Path: name, Spec: w.Spec})
}

// remove takes away something of ours that is no longer declared. While a module has a
// failure its files stay: an older version of something may need them.
func (p *pass) remove(ctx context.Context, step Step) {
	item := p.owned.get(step.ID)
	var err error
	switch {
	case step.Action == Forget:
	case step.Type == schema.TypeContainer:
		err = p.removeContainers(ctx, step.ID)
	case step.Type == schema.TypeService:
		err = p.supervisor.Remove(step.ID)
	case p.moduleFailed(step.ID):
		return
	default:
		err = removePath(item)
	}
	if err != nil {
		p.fail(step.ID, failure{cause: err.Error()})
		return
	}
	p.remember(func(s *state) { delete(s.Unproven, step.ID) })
	p.at(PointRemoved)
	p.note(p.owned.drop(step.ID))
}

func (p *pass) moduleFailed(id string) bool {
	p.proving.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	module, _, _ := strings.Cut(id, "/")
	for failed := range p.failures {
		if strings.HasPrefix(failed, module+"/") {
			return true
		}
	}
	return false
}

func (p *pass) removeContainers(ctx context.Context, id string) error {
	var problems []error
	for _, where := range []map[string]engine.Container{p.sight.containers, p.sight.previous} {
		if c, ok := where[id]; ok {
			if err := p.engine.Stop(ctx, c.ID); err != nil && !errors.Is(err, engine.ErrNotFound) {
				problems = append(problems, err)
			}
			problems = append(problems, p.engine.Remove(ctx, c.ID))
		}
	}
	return errors.Join(problems...)
}

// doubt remembers, before something is started, that it has yet to be seen working. What
// fails is watched again by every pass, also of the next process, until it works or another
// definition takes its place.
func (p *pass) doubt(w Wanted) {
	p.remember(func(s *state) { s.Unproven[w.ID] = w.Spec })
}

// prove watches a container or service in the background; settle is told how it went before
// anything that comes after it goes on.
func (p *pass) prove(ctx context.Context, w Wanted, container string, look func() (vital, error), settle func(error)) {
	proof := make(chan struct{})
	p.mu.Lock()
	p.proofs[w.ID] = proof
	p.mu.Unlock()
	p.proving.Go(func() {
		defer close(proof)
		err := p.prober.prove(ctx, p.realHealth(w), container, look)
		if err == nil {
			p.remember(func(s *state) { delete(s.Unproven, w.ID) })
		}
		settle(err)
	})
}

func (p *pass) realHealth(w Wanted) *schema.Health {
	if w.Health == nil || w.Type == schema.TypeContainer {
		return w.Health
	}
	health := *w.Health
	health.Exec = nil
	for _, word := range w.Health.Exec {
		health.Exec = append(health.Exec, p.paths.argument(word))
	}
	return &health
}

// hold remembers that a definition was tried and put back.
func (p *pass) hold(w Wanted, cause string) {
	p.fail(w.ID, failure{cause: cause, back: true})
	p.remember(func(s *state) {
		s.Held[w.ID] = held{Spec: w.Spec, Cause: cause}
		delete(s.Unproven, w.ID)
	})
}

// outcome is what is said of a pass: the worst that happened, and the first cause in the
// order of the declaration.
func (p *pass) outcome() (outcome, cause string) {
	outcome = OutcomeApplied
	for _, w := range p.wanted {
		f, failed := p.failures[w.ID]
		if one, isHeld := p.remembered().Held[w.ID]; !failed && isHeld && one.Spec == w.Spec {
			f, failed = failure{cause: one.Cause, back: true}, true
		}
		if !failed {
			continue
		}
		if cause == "" && !f.notice {
			cause = w.ID + ": " + f.cause
		}
		if !f.back {
			outcome = OutcomeFailed
		} else if outcome == OutcomeApplied {
			outcome = OutcomeRolledBack
		}
	}
	return outcome, cause
}
