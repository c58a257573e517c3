package extension

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/mesh-control/mesh/schema"
)

// accessKeys is the one key of host.access that is a union of what extensions give.
const accessKeys = "sshCaPublicKeys"

// Merge merges extensions' sections in the order given:
//
//   - host.config, host.telemetry and host.access key by key, the later winning, but
//     access.sshCaPublicKeys is the union of all;
//   - device assignments by their allocationId and instances by their id, the later
//     replacing the earlier in its place; those without an id all stay;
//   - modules by name, the later winning;
//   - resources are appended, one whose id is there already replacing it in its place;
//   - each field of site on its own, the last that gives it winning;
//   - daemon whole from the last that gives one.
//
// What a section leaves out erases nothing. Merge changes none of its arguments.
func Merge(sections ...Section) Section {
	merged := Section{
		Modules:   map[string]string{},
		Resources: []schema.Resource{},
		Host: schema.HostSection{
			Config:    map[string]json.RawMessage{},
			Telemetry: map[string]json.RawMessage{},
			Access:    map[string]json.RawMessage{},
		},
		Devices:   schema.DeviceSection{Assignments: []json.RawMessage{}},
		Instances: []json.RawMessage{},
	}
	for _, s := range sections {
		maps.Copy(merged.Modules, s.Modules)
		merged.Resources = mergeBy(merged.Resources, s.Resources, resourceID)
		maps.Copy(merged.Host.Config, s.Host.Config)
		maps.Copy(merged.Host.Telemetry, s.Host.Telemetry)
		mergeAccess(merged.Host.Access, s.Host.Access)
		merged.Devices.Assignments = mergeBy(merged.Devices.Assignments, s.Devices.Assignments, rawField("allocationId"))
		merged.Instances = mergeBy(merged.Instances, s.Instances, rawField("id"))
		if s.Site.CacheImages != nil {
			merged.Site.CacheImages = slices.Clone(s.Site.CacheImages)
		}
		if s.Daemon != nil {
			merged.Daemon = s.Daemon
		}
	}
	if merged.Site.CacheImages == nil {
		merged.Site.CacheImages = []string{}
	}
	return merged
}

// mergeBy puts later elements in the place of earlier ones of the same id, and the others
// behind. Elements without an id never replace anything.
func mergeBy[T any](into, from []T, id func(T) string) []T {
	places := map[string]int{}
	for i, element := range into {
		if key := id(element); key != "" {
			places[key] = i
		}
	}
	for _, element := range from {
		key := id(element)
		if place, ok := places[key]; ok && key != "" {
			into[place] = element
			continue
		}
		if key != "" {
			places[key] = len(into)
		}
		into = append(into, element)
	}
	return into
}

func resourceID(r schema.Resource) string { return r.ID }

// rawField answers the value of a field as its JSON text, "" where it is absent.
func rawField(name string) func(json.RawMessage) string {
	return func(raw json.RawMessage) string {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil {
			return ""
		}
		return string(fields[name])
	}
}

func mergeAccess(into, from map[string]json.RawMessage) {
	before := into[accessKeys]
	maps.Copy(into, from)
	var keys, more []string
	// What is no list of strings is not ours to unite: the later one stands.
	if from[accessKeys] == nil || json.Unmarshal(from[accessKeys], &more) != nil {
		return
	}
	if before != nil && json.Unmarshal(before, &keys) != nil {
		return
	}
	union := []string{}
	for _, key := range append(keys, more...) {
		if !slices.Contains(union, key) {
			union = append(union, key)
		}
	}
	text, err := json.Marshal(union)
	if err == nil {
		into[accessKeys] = text
	}
}
