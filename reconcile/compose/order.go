package compose

import (
	"path"
	"slices"

	"github.com/mesh-control/mesh/schema"
)

// sortResources orders a module's resources: after what they name, and a directory before
// what lies in it. Ties are broken by id. The second result names what waits for itself.
func sortResources(resources []schema.Resource) (ordered []schema.Resource, cyclic []string) {
	slices.SortFunc(resources, func(a, b schema.Resource) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	waits := map[string][]string{}
	for _, resource := range resources {
		waits[resource.ID] = append(waits[resource.ID], resource.After...)
		for _, other := range resources {
			if other.Type == schema.TypeDirectory && owns(resource) && within(path.Clean(resource.Path), path.Clean(other.Path)) {
				waits[resource.ID] = append(waits[resource.ID], other.ID)
			}
		}
	}
	present := map[string]bool{}
	for _, resource := range resources {
		present[resource.ID] = true
	}
	placed := map[string]bool{}
	free := func(resource schema.Resource) bool {
		if placed[resource.ID] {
			return false
		}
		return !slices.ContainsFunc(waits[resource.ID], func(id string) bool { return present[id] && !placed[id] })
	}
	for len(ordered) < len(resources) {
		next := slices.IndexFunc(resources, free)
		if next < 0 {
			for _, resource := range resources {
				if !placed[resource.ID] {
					cyclic = append(cyclic, resource.ID)
				}
			}
			return nil, cyclic
		}
		placed[resources[next].ID] = true
		ordered = append(ordered, resources[next])
	}
	return ordered, nil
}

// sortModules puts providers on the node before their consumers, the foundation first.
// Modules that require each other keep the order of their names.
func sortModules(modules []string, depends map[string][]string) []string {
	var ordered []string
	state := map[string]int{} // 1 entered, 2 placed
	var visit func(module string)
	visit = func(module string) {
		if state[module] != 0 {
			return
		}
		state[module] = 1
		providers := slices.Clone(depends[module])
		slices.Sort(providers)
		for _, provider := range providers {
			if slices.Contains(modules, provider) {
				visit(provider)
			}
		}
		state[module] = 2
		ordered = append(ordered, module)
	}
	if slices.Contains(modules, FoundationModule) {
		visit(FoundationModule)
	}
	for _, module := range modules {
		visit(module)
	}
	return ordered
}
