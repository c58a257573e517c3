package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The steps here see whole documents: what refers to what, and what cannot stand together.

var plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`) })

// place is a path into the document, as names and indexes.
type place []any

func (p place) then(steps ...any) place { return append(slices.Clip(p), steps...) }

// tell records an error at the value of a place, or at what is there of it.
func (c *checker) tell(p place, format string, args ...any) {
	if n, _ := c.root.walk(p...); !c.dropped(p) {
		c.found.add(n.start, p.path(), format, args...)
	}
}

// tellKey records an error at the name of a place rather than at its value.
func (c *checker) tellKey(p place, format string, args ...any) {
	n, whole := c.root.walk(p...)
	offset := n.start
	if whole && n.key != "" {
		offset = n.keyStart
	}
	if !c.dropped(p) {
		c.found.add(offset, p.path(), format, args...)
	}
}

// dropped says whether the place is in something refused already.
func (c *checker) dropped(p place) bool {
	n := c.root
	for _, step := range p {
		at := -1
		switch step := step.(type) {
		case string:
			at = slices.IndexFunc(n.children, func(child *node) bool { return child.key == step })
		case int:
			at = step
		}
		if at < 0 || at >= len(n.children) {
			return false
		}
		if n = n.children[at]; n.dropped {
			return true
		}
	}
	return false
}

func (p place) path() string {
	path := ""
	for _, step := range p {
		path = joinPath(path, step)
	}
	return path
}

// unit is what a module.json and a manifest have in common.
type unit struct {
	*checker
	at         place
	provides   []Provision
	requires   []Requirement
	claims     []Claim
	settings   map[string]Setting
	resources  []Resource
	secrets    map[string]string
	ownSecrets map[string]OwnSecret
}

func (c *checker) module(m *Module) {
	if m.Name == "artifact" {
		c.tell(place{"name"}, `no module can be called "artifact": no key of a declaration may be that word`)
	}
	c.artifactKeys(c.root, nil, func(n *node, path string) {
		if carried := strings.HasPrefix(path, "resources[") && strings.Count(path, ".") == 1; !carried {
			c.found.add(n.keyStart, path, `no name can be "artifact": no key of a declaration may be that word`)
		}
	})
	u := unit{c, nil, m.Provides, m.Requires, m.Claims, m.Settings, m.Resources, m.Secrets, m.OwnSecrets}
	c.artifacts(m)
	u.check()
}

func (c *checker) manifest(m *Manifest) { c.manifestAt(nil, m) }

func (c *checker) manifestAt(at place, m *Manifest) {
	base, whole := c.root.walk(at...)
	if !whole {
		return
	}
	c.artifactKeys(base, at, func(n *node, path string) {
		c.found.add(n.keyStart, path, "%s", artifactLeft(documentManifest))
	})
	u := unit{c, at, m.Provides, m.Requires, m.Claims, m.Settings, m.Resources, m.Secrets, m.OwnSecrets}
	u.check()
}

// artifactKeys finds every key "artifact", at any depth.
func (c *checker) artifactKeys(n *node, at place, tell func(n *node, path string)) {
	var walk func(n *node, path string)
	walk = func(n *node, path string) {
		for i, child := range n.children {
			below := joinPath(path, i)
			if n.kind == '{' {
				below = joinPath(path, child.key)
				if child.key == "artifact" {
					tell(child, below)
				}
			}
			walk(child, below)
		}
	}
	walk(n, at.path())
}

// artifacts checks the recipes and the names resources carry them by.
func (c *checker) artifacts(m *Module) {
	for _, name := range sortedKeys(m.Artifacts) {
		if !plainName().MatchString(name) || strings.HasSuffix(name, "-") {
			c.tellKey(place{"artifacts", name}, "%s is no artifact's name: lower-case letters, digits and dashes, starting with a letter, ending with a letter or digit, at most 63 of them", quote(name))
		}
		base := m.Artifacts[name].Base
		if base == "" {
			continue
		}
		switch on, known := m.Artifacts[base]; {
		case !known:
			c.tell(place{"artifacts", name, "base"}, "no artifact is called %s%s", quote(base), c.near(base, sortedKeys(m.Artifacts)))
		case on.Kind != KindUpstream:
			c.tell(place{"artifacts", name, "base"}, "a bundle is laid on an upstream artifact; %s is %s", quote(base), withArticle(on.Kind))
		}
	}
	takes := map[string][]string{TypeArchive: {KindArchive, KindBundle}, TypeContainer: {KindImage, KindUpstream, KindBundle}}
	for i, r := range m.Resources {
		if r.Artifact == "" {
			continue
		}
		artifact, known := m.Artifacts[r.Artifact]
		switch {
		case !known:
			c.tell(place{"resources", i, "artifact"}, "resource %s names the artifact %s, which is not under \"artifacts\"%s",
				quote(r.ID), quote(r.Artifact), c.near(r.Artifact, sortedKeys(m.Artifacts)))
		case artifact.Kind != "" && takes[r.Type] != nil && !slices.Contains(takes[r.Type], artifact.Kind):
			c.tell(place{"resources", i, "artifact"}, "%s takes an artifact of kind %s; %s is %s",
				withArticle(r.Type), orList(takes[r.Type]), quote(r.Artifact), withArticle(artifact.Kind))
		}
	}
}

func (c *checker) near(name string, names []string) string {
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

func (u unit) check() {
	required := make(map[string]bool)
	for i, r := range u.requires {
		if required[r.Name] {
			u.tell(u.at.then("requires", i), "%s is required twice", quote(r.Name))
		}
		required[r.Name] = true
	}
	provided := make(map[string]bool)
	for i, p := range u.provides {
		if provided[p.Name] {
			u.tell(u.at.then("provides", i, "name"), "%s is provided twice", quote(p.Name))
		}
		provided[p.Name] = true
	}
	u.checkClaims()
	u.checkSettings()
	u.checkSecrets(required)
	for i, r := range u.resources {
		if r.ID != "" && !plainName().MatchString(r.ID) {
			u.tell(u.at.then("resources", i, "id"), "must be a name: lower-case letters, digits and dashes, starting with a letter, at most 63 of them, not %s", quote(r.ID))
		}
	}
	u.checkResources(u.at.then("resources"), u.resources)
	u.checkPaths()
	u.checkReferences(required)
}

func (u unit) checkClaims() {
	held := make(map[Claim]bool)
	for i, claim := range u.claims {
		at := u.at.then("claims", i)
		n, _ := u.root.walk(at...)
		kinds := 0
		for _, kind := range []string{"role", "port", "device"} {
			if n.member(kind) != nil {
				kinds++
			}
		}
		if kinds != 1 && n.kind == '{' {
			u.tell(at, `a claim is exactly one of "role", "port" and "device"; this has %d of them`, kinds)
		}
		for _, field := range []string{"count", "topology"} {
			if n.member("device") == nil && n.member(field) != nil {
				u.tellKey(at.then(field), "belongs to a claim of a device")
			}
		}
		claim.Count, claim.Topology = 0, ""
		if held[claim] && kinds <= 1 && claim != (Claim{}) {
			u.tell(at, "claimed twice")
		}
		held[claim] = true
	}
}

func (u unit) checkSettings() {
	for _, name := range sortedKeys(u.settings) {
		s, at := u.settings[name], u.at.then("settings", name)
		numeric := s.Type == "integer" || s.Type == "number"
		if s.Type != "" && !numeric && (s.Minimum != nil || s.Maximum != nil) {
			u.tell(at, "a minimum or maximum is for integers and numbers; this is %s", withArticle(s.Type))
		}
		if s.Type != "" && s.Type != "string" && len(s.Enum) > 0 {
			u.tell(at.then("enum"), "an enum is for strings; this is %s", withArticle(s.Type))
		}
		if s.Minimum != nil && s.Maximum != nil && *s.Minimum > *s.Maximum {
			u.tell(at.then("maximum"), "is below the minimum")
		}
		if s.Default != nil && s.Type != "" {
			if err := s.Check(s.Default); err != nil {
				u.tell(at.then("default"), "%s", err)
			}
		}
	}
}

func (u unit) checkSecrets(required map[string]bool) {
	for _, name := range sortedKeys(u.secrets) {
		at := u.at.then("secrets", name)
		if !required[name] {
			u.tellKey(at, "no \"requires\" names %s: \"secrets\" says where the credential of a required provision lands; a secret of the module's own goes under \"own-secrets\"%s",
				quote(name), u.near(name, sortedKeys(required)))
		}
		u.noReference(at, u.secrets[name])
	}
	for _, name := range sortedKeys(u.ownSecrets) {
		at := u.at.then("own-secrets", name)
		if !plainName().MatchString(name) {
			u.tellKey(at, "%s is no secret's name: lower-case letters, digits and dashes, starting with a letter, at most 63 of them", quote(name))
		}
		if _, both := u.secrets[name]; both {
			u.tellKey(at, `%s stands under "secrets" too; ${secret.%s.path} could mean either`, quote(name), name)
		}
		u.noReference(at, u.ownSecrets[name].Path)
	}
	for i, p := range u.provides {
		u.noReference(u.at.then("provides", i, "grants"), p.Grants)
	}
}

func (c *checker) noReference(at place, value string) {
	if strings.Contains(value, "${") {
		c.tell(at, "a ${…} can stand in the values of resources only")
	}
}
