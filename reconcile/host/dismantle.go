package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mesh-control/mesh/schema"
)

// Dismantle ends everything this host made that runs: containers with their networks, and
// services. Files and data stay where they are. It is what uninstalling a node begins with.
func (h *Host) Dismantle(ctx context.Context) error {
	var problems []error
	status := h.supervisor.Status()
	for _, id := range slices.Sorted(maps.Keys(status)) {
		problems = append(problems, h.supervisor.Remove(id))
	}
	if h.engine != nil {
		problems = append(problems, h.dismantleContainers(ctx))
	}
	for id, o := range h.owned.all() {
		if o.Type == schema.TypeContainer || o.Type == schema.TypeService {
			problems = append(problems, h.owned.drop(id))
		}
	}
	return errors.Join(problems...)
}

func (h *Host) dismantleContainers(ctx context.Context) error {
	found, err := h.engine.List(ctx, h.labels())
	if err != nil {
		return fmt.Errorf("dismantle: %w", err)
	}
	var problems []error
	for _, c := range found {
		_ = h.engine.Stop(ctx, c.ID) // one that does not stop is killed by the removal
		problems = append(problems, h.engine.Remove(ctx, c.ID))
	}
	problems = append(problems, h.engine.RemoveNetworks(ctx, h.labels()))
	return errors.Join(problems...)
}
