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

// Diff says what turns before into after, resource by resource in the order of after,
// removals last. before may be nil. Secrets and contents are never shown, only that they differ.
func Diff(before, after *schema.Declaration) []api.Change {
	var changes []api.Change
	had := map[string]schema.Resource{}
	if before != nil {
		for _, resource := range before.Resources {
			had[resource.ID] = resource
		}
	}
	wanted := map[string]bool{}
	for _, resource := range after.Resources {
		wanted[resource.ID] = true
		previous, existed := had[resource.ID]
		if !existed {
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
	if before == nil {
		return append(changes, sections(Empty(after.Node), *after)...)
	}
	for i := len(before.Resources) - 1; i >= 0; i-- {
		if resource := before.Resources[i]; !wanted[resource.ID] {
			changes = append(changes, api.Change{Resource: resource.ID, Type: resource.Type, Action: actionRemove})
		}
	}
	return append(changes, sections(*before, *after)...)
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
func fields(before, after schema.Resource) []string {
	a, b := object(before), object(after)
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
			out = append(out, "env: "+strings.Join(changedKeys(before.Env, after.Env), ", ")+" changed")
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

func changedKeys(before, after map[string]string) []string {
	names := map[string]bool{}
	for name, value := range before {
		if other, ok := after[name]; !ok || other != value {
			names[name] = true
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// sections compares what is not a resource.
func sections(before, after schema.Declaration) []api.Change {
	var changes []api.Change
	compare := func(name string, a, b any) {
		x, errX := schema.Canonical(a)
		y, errY := schema.Canonical(b)
		if errX == nil && errY == nil && string(x) != string(y) {
			changes = append(changes, api.Change{Resource: name, Type: "section", Action: actionUpdate})
		}
	}
	keys := maps.Clone(before.Host.Config)
	if keys == nil {
		keys = map[string]json.RawMessage{}
	}
	maps.Copy(keys, after.Host.Config)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		compare("host.config."+key, before.Host.Config[key], after.Host.Config[key])
	}
	compare("host.telemetry", before.Host.Telemetry, after.Host.Telemetry)
	compare("host.access", before.Host.Access, after.Host.Access)
	compare("devices", before.Devices, after.Devices)
	compare("instances", before.Instances, after.Instances)
	compare("site", before.Site, after.Site)
	compare("daemon", before.Daemon, after.Daemon)
	return changes
}
