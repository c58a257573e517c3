package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

// removePath takes away a file or archive this host made. A directory is left where it is.
func removePath(o owned) error {
	switch o.Type {
	case schema.TypeFile:
		if err := os.Remove(o.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	case schema.TypeArchive:
		return removeArchive(o.Path)
	}
	return nil
}

// switchContainer makes, replaces, restarts or starts a container, and begins watching it. A
// predecessor is stopped and kept under another name until the new one has proved itself.
func (p *pass) switchContainer(ctx context.Context, step Step, w Wanted) error {
	current, exists := p.sight.containers[w.ID]
	id := current.ID
	p.doubt(w)
	var err error
	switch step.Action {
	case Start:
		if ended(current) {
			break
		}
		if err = p.engine.Start(ctx, id); err != nil && ctx.Err() == nil {
			p.log.Warn("a container that cannot be started is made anew", "resource", w.ID, "error", err)
			id, err = p.remakeContainer(ctx, w, id)
		}
	case Restart:
		err = p.engine.Restart(ctx, id)
	default:
		if id, err = p.replaceContainer(ctx, w, current, exists); err != nil {
			return err
		}
		if err = p.engine.Start(ctx, id); err == nil {
			p.at(PointStarted)
		}
	}
	if err == nil {
		err = p.owned.set(w.ID, owned{Type: w.Type, Spec: w.Spec, Trigger: w.Trigger})
	}
	if err != nil {
		return p.settleContainer(ctx, w, id, err)
	}
	look := func() (vital, error) { return p.containerVital(ctx, id) }
	p.prove(ctx, w, id, look, func(err error) {
		if err != nil {
			err = p.withTail(ctx, id, err)
		}
		if err := p.settleContainer(ctx, w, id, err); err != nil {
			p.fail(w.ID, failure{cause: err.Error()})
		}
	})
	return nil
}

// replaceContainer makes the new container, sets the old one aside and puts the new one in
// its place, not started. What is in its place and has never proved itself is not kept.
func (p *pass) replaceContainer(ctx context.Context, w Wanted, current engine.Container, exists bool) (string, error) {
	id, err := p.createContainer(ctx, w)
	if err != nil {
		return "", err
	}
	p.at(PointCreated)
	_, fallback := p.sight.previous[w.ID]
	switch {
	case exists && fallback:
		err = p.engine.Remove(ctx, current.ID)
	case exists:
		// First of all, or an engine that restarts would run both.
		err = errors.Join(p.engine.SetRestart(ctx, current.ID, "no"), p.engine.Stop(ctx, current.ID))
		if err == nil {
			err = p.engine.Rename(ctx, current.ID, engine.PreviousName(p.cfg.Node, w.ID))
		}
	}
	p.at(PointSetAside)
	if err == nil {
		err = p.engine.Rename(ctx, id, engine.Name(p.cfg.Node, w.ID))
	}
	return id, err
}

// createContainer makes a container that is not started. Its image was staged, but the pass may
// have been proving others for minutes since, and somebody may have pruned what the engine had.
func (p *pass) createContainer(ctx context.Context, w Wanted) (string, error) {
	definition, err := p.definition(w)
	if err != nil {
		return "", err
	}
	id, err := p.engine.Create(ctx, definition)
	if !errors.Is(err, engine.ErrNotFound) {
		return id, err
	}
	p.log.Warn("what a container needs was not there; it is made once more", "resource", w.ID, "error", err)
	if err := p.stageImage(ctx, w); err != nil {
		return "", err
	}
	return p.engine.Create(ctx, definition)
}

// remakeContainer makes a container of the same definition anew, and starts it: an engine that
// was killed may know a container that it can never start again.
func (p *pass) remakeContainer(ctx context.Context, w Wanted, id string) (string, error) {
	if err := p.engine.Remove(ctx, id); err != nil {
		return id, err
	}
	id, err := p.replaceContainer(ctx, w, engine.Container{}, false)
	if err != nil {
		return id, err
	}
	return id, p.engine.Start(ctx, id)
}

// settleContainer ends a change: the predecessor goes when err is nil, and comes back when it
// is not and there is one.
func (p *pass) settleContainer(ctx context.Context, w Wanted, id string, err error) error {
	previous, ierr := p.engine.Inspect(ctx, engine.PreviousName(p.cfg.Node, w.ID))
	switch {
	case errors.Is(ierr, engine.ErrNotFound):
		return err
	case ierr != nil:
		return errors.Join(err, ierr)
	case ctx.Err() != nil:
		return err // the next pass finds both and watches again
	case err == nil:
		p.at(PointProved)
		return p.engine.Remove(ctx, previous.ID)
	}
	cause := err.Error()
	if err := p.engine.Remove(ctx, id); err != nil {
		return err
	}
	if err := p.engine.Rename(ctx, previous.ID, engine.Name(p.cfg.Node, w.ID)); err != nil {
		return err
	}
	policy := string(engine.RestartPolicy(previous.Labels[engine.LabelRestart]))
	if err := errors.Join(p.engine.SetRestart(ctx, previous.ID, policy), p.engine.Start(ctx, previous.ID)); err != nil {
		return err
	}
	p.at(PointRolledBack)
	p.hold(w, cause)
	return p.owned.set(w.ID, owned{Type: w.Type, Spec: previous.Labels[engine.LabelSpec], Trigger: w.Trigger})
}

func (p *pass) withTail(ctx context.Context, id string, err error) error {
	if tail := p.engine.Tail(ctx, id, 20); tail != "" {
		return fmt.Errorf("%w; its last lines: %s", err, tail)
	}
	return err
}

func (h *Host) containerVital(ctx context.Context, id string) (vital, error) {
	c, err := h.engine.Inspect(ctx, id)
	if err != nil {
		return vital{}, err
	}
	return vitalOf(c), nil
}

func vitalOf(c engine.Container) vital {
	v := vital{running: c.Running(), ended: ended(c), restarts: c.Restarts, problem: c.Error}
	if c.Status == "exited" || c.Status == "restarting" {
		code := c.ExitCode
		v.exit = &code
	}
	if policy := c.Labels[engine.LabelRestart]; c.Status == "exited" && policy == "no" {
		v.ended = true
	}
	return v
}

// definition turns a declared container into what this machine's engine is told.
func (p *pass) definition(w Wanted) (engine.Definition, error) {
	r := w.Resource
	r.Mounts = slices.Clone(r.Mounts)
	for i := range r.Mounts {
		r.Mounts[i].Source = p.paths.real(r.Mounts[i].Source)
	}
	env, err := p.containerEnv(r)
	if err != nil {
		return engine.Definition{}, err
	}
	module, id, _ := strings.Cut(w.ID, "/")
	labels := maps.Clone(r.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	restart := r.Restart
	if restart == "" {
		restart = "always"
	}
	maps.Copy(labels, map[string]string{
		engine.LabelMesh: p.cfg.Mesh, engine.LabelNode: p.cfg.Node, engine.LabelModule: module, engine.LabelID: id,
		engine.LabelSpec: w.Spec, engine.LabelRestart: restart,
		engine.LabelEpoch:      strconv.FormatInt(p.declaration.Epoch, 10),
		engine.LabelGeneration: strconv.FormatInt(p.declaration.Generation, 10),
	})
	networks := map[string]string{}
	for _, name := range r.Networks {
		networks[name] = name
		if name != "host" && name != "bridge" && name != "none" {
			networks[name] = "mesh." + p.cfg.Node + "." + name
		}
	}
	return engine.Definition{
		Name: engine.NextName(p.cfg.Node, w.ID), Image: p.store.image(w.Image), Resource: r,
		Env: env, Labels: labels, Networks: networks,
	}, nil
}

func (p *pass) containerEnv(r schema.Resource) ([]string, error) {
	var env []string
	for _, name := range r.EnvFiles {
		text, err := os.ReadFile(p.paths.real(name))
		if err != nil {
			return nil, fmt.Errorf("env-file: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "#") {
				env = append(env, line)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.Env)) {
		env = append(env, key+"="+r.Env[key])
	}
	return env, nil
}

// A service finds programs where a login would.
const servicePath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (p *pass) program(r schema.Resource) Program {
	program := Program{
		Exec: p.paths.real(r.Exec), User: r.User, Restart: r.Restart, Directory: p.paths.real(r.Directory),
		StopSignal: r.StopSignal, StopTimeout: r.StopTimeout, Env: []string{servicePath},
	}
	if program.Directory == "" {
		program.Directory = "/"
	}
	for _, word := range r.Args {
		program.Args = append(program.Args, p.paths.argument(word))
	}
	for _, key := range slices.Sorted(maps.Keys(r.Env)) {
		program.Env = append(program.Env, key+"="+p.paths.argument(r.Env[key]))
	}
	return program
}

// switchService starts a service in place of what runs under its id, and begins watching it.
// When it fails and something was running before, that comes back, with the version of the
// archive its program was in.
func (p *pass) switchService(ctx context.Context, step Step, w Wanted) error {
	before := p.sight.services[w.ID]
	fallback := before.Fallback
	if fallback == nil && before.Running {
		fallback = p.fallback(w, before)
	}
	p.doubt(w)
	if step.Action != Start || !before.Running && !before.Ended {
		if err := p.supervisor.Start(w.ID, w.Spec, w.Trigger, p.program(w.Resource), fallback); err != nil {
			return p.settleService(w, fallback, err)
		}
		p.at(PointService)
	}
	look := func() (vital, error) {
		s, ok := p.supervisor.Status()[w.ID]
		if !ok {
			return vital{}, errors.New("it was removed meanwhile")
		}
		return serviceVital(s), nil
	}
	p.prove(ctx, w, "", look, func(err error) {
		if ctx.Err() != nil {
			return // the next pass finds the fallback and watches again
		}
		if tail := p.supervisor.Tail(w.ID); err != nil && tail != "" {
			err = fmt.Errorf("%w; its last lines: %s", err, tail)
		}
		if err := p.settleService(w, fallback, err); err != nil {
			p.fail(w.ID, failure{cause: err.Error()})
		}
	})
	return nil
}

// fallback is what to go back to; nil when that would be the same again.
func (p *pass) fallback(w Wanted, before ServiceStatus) *Fallback {
	f := &Fallback{Spec: before.Spec, Program: before.Program}
	for _, other := range p.wanted {
		if other.Type == schema.TypeArchive && within(path.Clean(w.Exec), path.Clean(other.Path)) && p.replaced[other.ID] != "" {
			f.ArchiveID, f.Archive, f.Version = other.ID, p.layout.Path(other.Path), p.replaced[other.ID]
		}
	}
	if f.Spec == w.Spec && f.Archive == "" {
		return nil
	}
	return f
}

func serviceVital(s ServiceStatus) vital {
	v := vital{running: s.Running, ended: s.Ended, exit: s.LastExit, restarts: s.Restarts}
	if s.Err != nil {
		v.problem = s.Err.Error()
	}
	return v
}

// settleService ends a change: the fallback goes when err is nil and runs when it is not.
func (p *pass) settleService(w Wanted, fallback *Fallback, err error) error {
	switch {
	case err == nil:
		p.at(PointProved)
		return p.supervisor.Proved(w.ID)
	case fallback == nil:
		return err
	}
	cause := err.Error()
	if fallback.Archive != "" {
		if err := pointTo(fallback.Archive, fallback.Version); err != nil {
			return err
		}
		if archive, ok := p.find(fallback.ArchiveID); ok {
			p.hold(archive, "put back with "+w.ID)
		}
	}
	if err := p.supervisor.Start(w.ID, fallback.Spec, w.Trigger, fallback.Program, nil); err != nil {
		return fmt.Errorf("%s; and its previous version does not start: %w", cause, err)
	}
	p.at(PointRolledBack)
	p.hold(w, cause)
	return nil
}
