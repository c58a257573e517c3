package schema

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// checkResources holds what is true of resources in every document.
func (c *checker) checkResources(at place, resources []Resource) {
	index := make(map[string]int, len(resources))
	for i, r := range resources {
		if first, twice := index[r.ID]; twice && r.ID != "" {
			c.tell(at.then(i, "id"), "%s is the id of resources[%d] too", quote(r.ID), first)
			continue
		}
		index[r.ID] = i
	}
	ids := sortedKeys(index)
	for i, r := range resources {
		for field, list := range map[string][]string{"after": r.After, "restart-on": r.RestartOn} {
			for j, id := range list {
				if _, known := index[id]; !known {
					c.tell(at.then(i, field, j), "no resource has the id %s%s", quote(id), c.near(id, ids))
				} else if id == r.ID {
					c.tell(at.then(i, field, j), "%s names itself", quote(id))
				}
			}
		}
		c.checkHealth(at.then(i, "health"), r.Health)
	}
	c.checkOrder(at, resources, index)
	c.checkPorts(at, resources)
}

func (c *checker) checkHealth(at place, h *Health) {
	if h == nil {
		return
	}
	ways := 0
	for _, given := range []bool{h.HTTP != "", h.TCP != "", len(h.Exec) > 0} {
		if given {
			ways++
		}
	}
	if ways > 1 || ways == 0 && (h.Interval != 0 || h.Window != 0) {
		c.tell(at, `a health check is exactly one of "http", "tcp" and "exec"; this has %d of them`, ways)
	}
	if len(h.Status) > 0 && h.HTTP == "" {
		c.tell(at.then("status"), `only an answer to "http" has a status`)
	}
}

// checkOrder refuses resources that wait for each other in a circle.
func (c *checker) checkOrder(at place, resources []Resource, index map[string]int) {
	const (
		unseen = iota
		open
		done
	)
	state := make([]int, len(resources))
	type step struct{ resource, next int }
	for start := range resources {
		if state[start] != unseen {
			continue
		}
		stack := []step{{start, 0}}
		state[start] = open
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			after := resources[top.resource].After
			if top.next == len(after) {
				state[top.resource] = done
				stack = stack[:len(stack)-1]
				continue
			}
			to, known := index[after[top.next]]
			top.next++
			if !known || to == top.resource {
				continue
			}
			switch state[to] {
			case unseen:
				state[to] = open
				stack = append(stack, step{to, 0})
			case open:
				var circle []string
				for i := slices.IndexFunc(stack, func(s step) bool { return s.resource == to }); i < len(stack); i++ {
					circle = append(circle, clip(resources[stack[i].resource].ID))
				}
				if len(circle) > 8 {
					circle = append(circle[:8], "…")
				}
				c.tell(at.then(top.resource, "after", top.next-1), "goes in a circle: %s", strings.Join(append(circle, clip(resources[to].ID)), " after "))
			}
		}
	}
}

// checkPorts refuses one port of the node published twice.
func (c *checker) checkPorts(at place, resources []Resource) {
	type published struct {
		port     int
		protocol string
		address  string
	}
	taken := make(map[published]string)
	for i, r := range resources {
		for j, p := range r.Ports {
			key := published{p.Host, p.Protocol, p.Address}
			if key.port == 0 {
				key.port = p.Container
			}
			if key.protocol == "" {
				key.protocol = "tcp"
			}
			if holder, twice := taken[key]; twice {
				c.tell(at.then(i, "ports", j), "port %d/%s of the node is published by %s already", key.port, key.protocol, quote(holder))
			}
			taken[key] = r.ID
		}
	}
}

// checkPaths holds "one path, one owner" within a module, and that containers mount
// directories.
func (u unit) checkPaths() {
	var owned []OwnedPath
	var places []place
	add := func(at place, path, kind, owner string) {
		if path != "" {
			owned, places = append(owned, OwnedPath{path, kind, owner}), append(places, at)
		}
	}
	for i, p := range u.provides {
		add(u.at.then("provides", i, "grants"), p.Grants, PathGrants, fmt.Sprintf("the grants of provision %q", clip(p.Name)))
	}
	for i, r := range u.resources {
		if r.Type == TypeDirectory || r.Type == TypeFile || r.Type == TypeArchive {
			add(u.at.then("resources", i, "path"), r.Path, r.Type, fmt.Sprintf("%s %q", r.Type, clip(r.ID)))
		}
	}
	for _, name := range sortedKeys(u.secrets) {
		add(u.at.then("secrets", name), u.secrets[name], PathSecret, fmt.Sprintf("the credential of %q", clip(name)))
	}
	for _, name := range sortedKeys(u.ownSecrets) {
		at := u.at.then("own-secrets", name)
		if n, _ := u.root.walk(at...); n.kind == '{' {
			at = at.then("path")
		}
		add(at, u.ownSecrets[name].Path, PathSecret, fmt.Sprintf("own secret %q", clip(name)))
	}
	u.owners(owned, places)
	u.checkMounts(u.at.then("resources"), u.resources, owned)
}

// owners tells the conflicts among paths at the places they were declared.
func (c *checker) owners(owned []OwnedPath, places []place) {
	for i, p := range owned {
		if p.Path == "/" && p.Kind != TypeDirectory {
			c.tell(places[i], "the root of the machine belongs to nobody")
		}
	}
	for _, found := range PathConflicts(owned) {
		c.tell(places[found.Second], "%s", found.Message)
	}
}

// checkMounts refuses a single file as a mount: an atomic replacement of it would leave
// the container with the old one for ever.
func (c *checker) checkMounts(at place, resources []Resource, owned []OwnedPath) {
	files := make(map[string]string)
	for _, p := range owned {
		if p.Kind == TypeFile || p.Kind == PathSecret {
			files[p.Path] = p.Owner
		}
	}
	for i, r := range resources {
		for j, m := range r.Mounts {
			source := at.then(i, "mounts", j, "source")
			if owner, isFile := files[m.Source]; isFile {
				c.tell(source, "mounts a single file (%s), which keeps its old content when the file is replaced; mount its directory %s", owner, clip(path.Dir(m.Source)))
			} else if references, err := References(m.Source); err == nil && slices.ContainsFunc(references, func(r Reference) bool { return r.Kind == RefSecret }) {
				c.tell(source, "mounts a single file, which keeps its old content when the file is replaced; mount its directory")
			}
		}
	}
}

// unexpanded are the fields of a resource in which no reference stands.
var unexpanded = []string{"id", "type", "after", "artifact", "restart-on", "source", "digest", "image"}

// checkReferences refuses ${…} that refer to nothing this module has.
func (u unit) checkReferences(required map[string]bool) {
	list, whole := u.root.walk(u.at.then("resources")...)
	if !whole {
		return
	}
	for i, resource := range list.children {
		at := joinPath(u.at.then("resources").path(), i)
		for _, field := range resource.children {
			if !slices.Contains(unexpanded, field.key) {
				u.referencesIn(field, joinPath(at, field.key), required)
			}
		}
	}
}

func (u unit) referencesIn(n *node, at string, required map[string]bool) {
	if n.kind == '"' {
		_, err := Expand(n.text, func(r Reference) (string, error) { return "", u.resolve(r, required) })
		if err != nil {
			u.found.add(n.start, at, "%s", err)
		}
	}
	for i, child := range n.children {
		below := joinPath(at, i)
		if n.kind == '{' {
			below = joinPath(at, child.key)
		}
		u.referencesIn(child, below, required)
	}
}

// resolve says whether the module has what a reference asks for.
func (u unit) resolve(r Reference, required map[string]bool) error {
	switch r.Kind {
	case RefSetting:
		if _, known := u.settings[r.Name]; !known {
			return fmt.Errorf("%s: the module has no setting %s%s; write \"$${\" for a literal \"${\"",
				clip(r.String()), quote(r.Name), u.near(r.Name, sortedKeys(u.settings)))
		}
	case RefProvision:
		provided := slices.ContainsFunc(u.provides, func(p Provision) bool { return p.Name == r.Name })
		if !required[r.Name] && !provided {
			return fmt.Errorf("%s: the module requires no provision %s%s", clip(r.String()), quote(r.Name), u.near(r.Name, sortedKeys(required)))
		}
	case RefSecret:
		_, secret := u.secrets[r.Name]
		_, own := u.ownSecrets[r.Name]
		if !secret && !own {
			return fmt.Errorf("%s: neither \"secrets\" nor \"own-secrets\" has %s%s", clip(r.String()), quote(r.Name),
				u.near(r.Name, append(sortedKeys(u.secrets), sortedKeys(u.ownSecrets)...)))
		}
	}
	return nil
}
