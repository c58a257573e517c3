package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// Actions of a change.
const (
	actionCreate   = "create"
	actionUpdate   = "update"
	actionRecreate = "recreate"
	actionRemove   = "remove"
)

// Diff says what turns old into new, resource by resource in the order of new, removals
// last. old may be nil. Secrets and contents are never shown, only that they differ.
func Diff(old, new *schema.Declaration) []api.Change {
	var changes []api.Change
	before := map[string]schema.Resource{}
	if old != nil {
		for _, resource := range old.Resources {
			before[resource.ID] = resource
		}
	}
	after := map[string]bool{}
	for _, resource := range new.Resources {
		after[resource.ID] = true
		previous, had := before[resource.ID]
		if !had {
			changes = append(changes, api.Change{Resource: resource.ID, Type: resource.Type, Action: actionCreate, Detail: created(resource)})
			continue
		}
		detail := fields(previous, resource)
		if len(detail) == 0 {
			continue
		}
		action := actionUpdate
		if resource.Type != previous.Type || resource.Type == schema.TypeContainer {
			action = actionRecreate
		}
		changes = append(changes, api.Change{Resource: resource.ID, Type: resource.Type, Action: action, Detail: strings.Join(detail, "; ")})
	}
	if old == nil {
		return append(changes, sections(Empty(new.Node), *new)...)
	}
	for i := len(old.Resources) - 1; i >= 0; i-- {
		if resource := old.Resources[i]; !after[resource.ID] {
			changes = append(changes, api.Change{Resource: resource.ID, Type: resource.Type, Action: actionRemove})
		}
	}
	return append(changes, sections(*old, *new)...)
}

func created(resource schema.Resource) string {
	switch {
	case resource.Image != "":
		return resource.Image
	case resource.Digest != "":
		return resource.Path + " " + resource.Digest
	}
	return resource.Path
}

// fields compares two resources field by field.
func fields(old, new schema.Resource) []string {
	a, b := object(old), object(new)
	var out []string
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if string(a[name]) == string(b[name]) {
			continue
		}
		switch name {
		case "sealed":
			out = append(out, "secret replaced")
		case "content":
			out = append(out, "content changed")
		case "env":
			out = append(out, "env: "+strings.Join(changedKeys(old.Env, new.Env), ", ")+" changed")
		default:
			out = append(out, fmt.Sprintf("%s: %s -> %s", name, shown(a[name]), shown(b[name])))
		}
	}
	return out
}

func shown(value json.RawMessage) string {
	if len(value) == 0 {
		return "none"
	}
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

func object(value any) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	data, err := schema.Canonical(value)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		return map[string]json.RawMessage{}
	}
	return out
}

func changedKeys(old, new map[string]string) []string {
	names := map[string]bool{}
	for name, value := range old {
		if other, ok := new[name]; !ok || other != value {
			names[name] = true
		}
	}
	for name := range new {
		if _, ok := old[name]; !ok {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// sections compares what is not a resource.
func sections(old, new schema.Declaration) []api.Change {
	var changes []api.Change
	compare := func(name string, a, b any) {
		x, errX := schema.Canonical(a)
		y, errY := schema.Canonical(b)
		if errX == nil && errY == nil && string(x) != string(y) {
			changes = append(changes, api.Change{Resource: name, Type: "section", Action: actionUpdate})
		}
	}
	keys := maps.Clone(old.Host.Config)
	if keys == nil {
		keys = map[string]json.RawMessage{}
	}
	maps.Copy(keys, new.Host.Config)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		compare("host.config."+key, old.Host.Config[key], new.Host.Config[key])
	}
	compare("host.telemetry", old.Host.Telemetry, new.Host.Telemetry)
	compare("host.access", old.Host.Access, new.Host.Access)
	compare("devices", old.Devices, new.Devices)
	compare("instances", old.Instances, new.Instances)
	compare("site", old.Site, new.Site)
	compare("daemon", old.Daemon, new.Daemon)
	return changes
}
