package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

// sight is one look at the machine.
type sight struct {
	observed   Observed
	containers map[string]engine.Container // by resource id
	previous   map[string]engine.Container
	leftovers  []engine.Container // made and never put in place
	services   map[string]ServiceStatus
	engineErr  error // why nothing is known of containers
}

// unknownSpec is the definition of something ours of which no more is known.
const unknownSpec = "unknown"

// look observes everything this host made and everything in the place of what is wanted.
func (h *Host) look(ctx context.Context, wanted []Wanted) (sight, error) {
	s := sight{
		observed:   Observed{Items: map[string]Item{}},
		containers: map[string]engine.Container{},
		previous:   map[string]engine.Container{},
		services:   h.supervisor.Status(),
	}
	for id, o := range h.owned.all() {
		if _, err := os.Lstat(o.Path); err == nil && o.Type != schema.TypeContainer {
			s.observed.Items[id] = Item{Type: o.Type, Spec: o.Spec, Made: true}
		}
	}
	for id, status := range s.services {
		s.observed.Items[id] = Item{
			Type: schema.TypeService, Spec: status.Spec, Trigger: status.Trigger, Made: true,
			Running: status.Running, Ended: status.Ended, Unproven: status.Fallback != nil,
		}
	}
	s.engineErr = h.lookAtContainers(ctx, &s)
	for id, spec := range h.remembered().Unproven {
		if item, ok := s.observed.Items[id]; ok && item.Spec == spec {
			item.Unproven = true
			s.observed.Items[id] = item
		}
	}
	for _, w := range wanted {
		item, err := h.itemFor(ctx, w, s)
		if err != nil {
			return s, err
		}
		if item.Type != "" {
			s.observed.Items[w.ID] = item
		}
	}
	return s, nil
}

func (h *Host) labels() map[string]string {
	return map[string]string{engine.LabelMesh: h.cfg.Mesh, engine.LabelNode: h.cfg.Node}
}

func (h *Host) lookAtContainers(ctx context.Context, s *sight) error {
	if h.engine == nil {
		return errors.New("no container engine is configured on this node")
	}
	found, err := h.engine.List(ctx, h.labels())
	if err != nil {
		return err
	}
	for _, c := range found {
		switch {
		case c.Next:
			s.leftovers = append(s.leftovers, c)
		case c.Previous:
			s.previous[c.Resource()] = c
		default:
			s.containers[c.Resource()] = c
		}
	}
	for id, c := range s.containers {
		_, unproven := s.previous[id]
		s.observed.Items[id] = Item{
			Type: schema.TypeContainer, Spec: c.Labels[engine.LabelSpec], Made: true, Running: c.Running() || c.Status == "restarting",
			Ended: ended(c), Trigger: h.owned.get(id).Trigger, Unproven: unproven,
		}
	}
	for id := range s.previous {
		if _, replaced := s.containers[id]; !replaced {
			s.observed.Items[id] = Item{Type: schema.TypeContainer, Made: true}
		}
	}
	return nil
}

// ended says that a container has finished and its policy leaves it so.
func ended(c engine.Container) bool {
	policy := c.Labels[engine.LabelRestart]
	return c.Status == "exited" && (policy == "no" || policy == "on-failure" && c.ExitCode == 0)
}

// itemFor looks at the place of one wanted resource. An Item without a type says nothing new.
func (h *Host) itemFor(ctx context.Context, w Wanted, s sight) (Item, error) {
	if known := s.observed.Items[w.ID]; known.Type != "" && known.Type != w.Type {
		return Item{}, nil
	}
	switch w.Type {
	case schema.TypeDirectory:
		return h.lookAtDirectory(w)
	case schema.TypeFile:
		return h.lookAtFile(w)
	case schema.TypeArchive:
		return h.lookAtArchive(w)
	case schema.TypeContainer:
		if _, ours := s.containers[w.ID]; ours {
			return Item{}, nil
		}
		if s.engineErr != nil {
			return Item{Type: w.Type, Foreign: s.engineErr.Error()}, nil //nolint:nilerr // what is observed is that nothing can be
		}
		return h.lookForForeign(ctx, w)
	}
	return Item{}, nil
}

func (h *Host) lookForForeign(ctx context.Context, w Wanted) (Item, error) {
	name := engine.Name(h.cfg.Node, w.ID)
	c, err := h.engine.Inspect(ctx, name)
	if errors.Is(err, engine.ErrNotFound) {
		return Item{}, nil
	}
	if err != nil {
		return Item{}, err
	}
	return Item{Type: w.Type, Foreign: fmt.Sprintf(
		"container %s (%.12s) has the name and was not made by this mesh's host; remove or rename it", name, c.ID)}, nil
}

func (h *Host) lookAtDirectory(w Wanted) (Item, error) {
	name := h.layout.Path(w.Path)
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Item{Type: w.Type}, nil
	}
	if err != nil {
		return Item{}, err
	}
	if !info.IsDir() {
		return Item{Type: w.Type, Foreign: name + " exists and is not a directory"}, nil
	}
	mine := h.owned.get(w.ID)
	item := Item{Type: w.Type, Spec: unknownSpec, Made: mine.Path == name}
	drift := attributesDrift(info, w, info.Mode().Perm())
	switch {
	case mine.Path == name && mine.Spec == w.Spec:
		item.Spec, item.Drift = w.Spec, drift
	case drift == "":
		item.Spec = w.Spec
	}
	return item, nil
}

// attributesDrift says how mode or owner differ from what was declared.
func attributesDrift(info fs.FileInfo, w Wanted, byDefault fs.FileMode) string {
	if mode, err := parseMode(w.Mode, byDefault); err == nil && info.Mode().Perm() != mode.Perm() {
		return fmt.Sprintf("mode is %04o, declared %04o", info.Mode().Perm(), mode.Perm())
	}
	if by, err := parseOwner(w.Owner); err == nil && !ownedAs(info, by) {
		return "owner is not " + w.Owner
	}
	return ""
}

func (h *Host) lookAtFile(w Wanted) (Item, error) {
	name := h.layout.Path(w.Path)
	info, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Item{Type: w.Type, Made: h.owned.get(w.ID).Path != ""}, nil
	}
	if err != nil {
		return Item{}, err
	}
	drift := fileDrift(name, info, w)
	mine := h.owned.get(w.ID)
	switch {
	case mine.Path == name && mine.Spec == w.Spec:
		return Item{Type: w.Type, Spec: w.Spec, Made: true, Drift: drift}, nil
	case drift == "": // written, and the record lost
		return Item{Type: w.Type, Spec: w.Spec, Made: true}, nil
	case mine.Path == name:
		return Item{Type: w.Type, Spec: mine.Spec, Made: true}, nil
	case !h.owned.complete:
		return Item{Type: w.Type, Spec: unknownSpec, Made: true}, nil
	}
	return Item{Type: w.Type, Foreign: name + " exists and was not made by this mesh's host; move it away"}, nil
}

func fileDrift(name string, info fs.FileInfo, w Wanted) string {
	if !info.Mode().IsRegular() {
		return "it is no longer a file"
	}
	if drift := attributesDrift(info, w, defaultFileMode(w.Resource)); drift != "" {
		return drift
	}
	content, err := os.ReadFile(name)
	switch {
	case err != nil:
		return err.Error()
	case !bytes.Equal(content, w.Content) && w.Sealed != nil:
		return "its contents were changed"
	case !bytes.Equal(content, w.Content):
		return difference(w.Content, content)
	}
	return ""
}

// difference shows the first line that is not as declared.
func difference(declared, found []byte) string {
	want, got := strings.Split(string(declared), "\n"), strings.Split(string(found), "\n")
	for i := range max(len(want), len(got)) {
		line := func(lines []string) string {
			if i >= len(lines) {
				return "(end)"
			}
			return fmt.Sprintf("%.120q", lines[i])
		}
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			return fmt.Sprintf("line %d is %s, declared %s", i+1, line(got), line(want))
		}
	}
	return ""
}

func defaultFileMode(r schema.Resource) fs.FileMode {
	if r.Sealed != nil {
		return 0o600
	}
	return 0o644
}

func (h *Host) lookAtArchive(w Wanted) (Item, error) {
	name := h.layout.Path(w.Path)
	info, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Item{Type: w.Type, Made: h.owned.get(w.ID).Path != ""}, nil
	}
	if err != nil {
		return Item{}, err
	}
	target, _ := os.Readlink(name)
	if info.Mode()&fs.ModeSymlink == 0 || !isVersion(target, filepath.Base(name)) {
		return Item{Type: w.Type, Foreign: name + " exists and was not unpacked by this mesh's host; move it away"}, nil
	}
	item := Item{Type: w.Type, Spec: unknownSpec, Made: true}
	if target == versionName(name, w.Resource) {
		item.Spec = w.Spec
	}
	return item, nil
}
