package host

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// Action is what a step does.
type Action string

// The actions.
const (
	Create  Action = "create"
	Update  Action = "update"  // directory, file, archive: made anew in place
	Replace Action = "replace" // container, service: stopped and made anew from another definition
	Restart Action = "restart" // same definition
	Start   Action = "start"   // it is there and does not run
	Remove  Action = "remove"
	Forget  Action = "forget" // no longer declared, left where it is: a data directory
	Refuse  Action = "refuse" // something that is not ours stands in its place
)

// Step is one change to the machine. A plan is a list of them.
type Step struct {
	Action Action `json:"action"`
	ID     string `json:"id"`
	Type   string `json:"type"`
	Reason string `json:"reason,omitempty"`
}

// String is how a person reads a step.
func (s Step) String() string {
	if s.Reason == "" {
		return fmt.Sprintf("%s %s %s", s.Action, s.Type, s.ID)
	}
	return fmt.Sprintf("%s %s %s (%s)", s.Action, s.Type, s.ID, s.Reason)
}

// Item is what is really there for one id.
type Item struct {
	Type    string
	Spec    string // the definition it was made from; "" when nothing is there
	Trigger string // what it was last started for; "" when not known
	Made    bool   // by this host
	Running bool   // container, service
	// Unproven: it has not been seen to work since it was started.
	Unproven bool
	Ended    bool   // a container or service that may stay ended: done, or told not to restart
	Drift    string // how it differs from what this host made
	Foreign  string // what stands in its place and is not ours
}

// Observed is the machine as far as a declaration reaches.
type Observed struct {
	Items map[string]Item
}

// Rules decide what a pass may do beside carrying out what was declared.
type Rules struct {
	// Repair puts back what somebody changed by hand.
	Repair bool
	// Held are definitions that failed and are not tried again: id to spec.
	Held map[string]string
}

// Plan lists what has to be done for observed to be declared, in the order of doing:
// removals of what gives up its place, then the declared resources in dependency order, then
// the other removals. An empty plan means that the machine is what was declared.
func Plan(declared []Wanted, observed Observed, rules Rules) []Step {
	var steps []Step
	for _, w := range inOrder(declared) {
		if step, needed := stepFor(w, observed.Items[w.ID], rules); needed {
			steps = append(steps, step)
		}
	}
	var early, late []Step
	for _, id := range slices.Sorted(maps.Keys(observed.Items)) {
		item := observed.Items[id]
		at := slices.IndexFunc(declared, func(w Wanted) bool { return w.ID == id })
		switch {
		case at < 0 && item.Made && item.Type == schema.TypeDirectory:
			late = append(late, Step{Action: Forget, ID: id, Type: item.Type, Reason: "no longer declared; a directory stays"})
		case at < 0 && item.Made && (item.Type == schema.TypeContainer || item.Type == schema.TypeService):
			early = append(early, Step{Action: Remove, ID: id, Type: item.Type, Reason: "no longer declared"})
		case at < 0 && item.Made:
			late = append(late, Step{Action: Remove, ID: id, Type: item.Type, Reason: "no longer declared"})
		case at >= 0 && item.Made && item.Type != declared[at].Type:
			early = append(early, Step{Action: Remove, ID: id, Type: item.Type, Reason: "is now a " + declared[at].Type})
		}
	}
	return slices.Concat(early, steps, late)
}

func stepFor(w Wanted, item Item, rules Rules) (Step, bool) {
	step := Step{ID: w.ID, Type: w.Type}
	runs := w.Type == schema.TypeContainer || w.Type == schema.TypeService
	switch {
	case w.Err != nil:
		step.Action, step.Reason = Refuse, w.Err.Error()
	case item.Foreign != "":
		step.Action, step.Reason = Refuse, item.Foreign
	case item.Spec == "" || item.Type != w.Type:
		step.Action = Create
	case item.Spec != w.Spec && rules.Held[w.ID] == w.Spec:
		return startIfDown(step, item)
	case item.Spec != w.Spec && runs:
		step.Action, step.Reason = Replace, "its definition changed"
	case item.Spec != w.Spec:
		step.Action, step.Reason = Update, "its definition changed"
	case runs && item.Trigger != "" && item.Trigger != w.Trigger && w.Trigger != "":
		step.Action, step.Reason = Restart, "something it restarts for changed"
	case runs:
		return startIfDown(step, item)
	case item.Drift != "" && rules.Repair:
		step.Action, step.Reason = Update, item.Drift
	default:
		return Step{}, false
	}
	return step, true
}

func startIfDown(step Step, item Item) (Step, bool) {
	runs := step.Type == schema.TypeContainer || step.Type == schema.TypeService
	if runs && item.Unproven {
		step.Action, step.Reason = Start, "it has not proved itself yet"
		return step, true
	}
	if !runs || item.Running || item.Ended {
		return Step{}, false
	}
	step.Action, step.Reason = Start, "it is not running"
	return step, true
}

// inOrder puts what others come after first and otherwise keeps the declared order. What
// waits for itself keeps its place.
func inOrder(declared []Wanted) []Wanted {
	byID := map[string]Wanted{}
	for _, w := range declared {
		byID[w.ID] = w
	}
	ordered := make([]Wanted, 0, len(declared))
	entered := map[string]bool{}
	var visit func(w Wanted)
	visit = func(w Wanted) {
		if entered[w.ID] {
			return
		}
		entered[w.ID] = true
		for _, id := range after(w) {
			if before, ok := byID[id]; ok {
				visit(before)
			}
		}
		ordered = append(ordered, w)
	}
	for _, w := range declared {
		visit(w)
	}
	return ordered
}

// after gives whole ids, whichever way they were written.
func after(w Wanted) []string {
	module, _, _ := strings.Cut(w.ID, "/")
	ids := make([]string, 0, len(w.After))
	for _, id := range w.After {
		if !strings.Contains(id, "/") {
			id = module + "/" + id
		}
		ids = append(ids, id)
	}
	return ids
}
