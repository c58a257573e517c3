package schema

import (
	"fmt"
	"strings"
)

func (c *checker) declaration(d *Declaration) {
	c.artifactKeys(c.root, nil, func(n *node, path string) {
		c.found.add(n.keyStart, path, "%s", artifactLeft(documentDeclaration))
	})
	at := place{"resources"}
	var owned []OwnedPath
	var places []place
	for i, r := range d.Resources {
		if r.ID != "" && !strings.Contains(r.ID, "/") {
			c.tell(at.then(i, "id"), `must be "<module>/<id>" in a declaration, not %s`, quote(r.ID))
		}
		switch r.Type {
		case TypeFile:
			if (r.Content == nil) == (r.Sealed == nil) {
				c.tell(at.then(i), `file %s needs exactly one of "content" and "sealed"`, quote(r.ID))
			}
			fallthrough
		case TypeDirectory, TypeArchive:
			if r.Path != "" && !strings.HasPrefix(r.Path, "/") {
				c.tell(at.then(i, "path"), "must be an absolute path, not %s", quote(r.Path))
				continue
			}
			owned = append(owned, OwnedPath{strings.ReplaceAll(r.Path, "${", "$ {"), r.Type, fmt.Sprintf("%s %q", r.Type, clip(r.ID))})
			places = append(places, at.then(i, "path"))
		}
	}
	c.checkResources(at, d.Resources)
	c.owners(owned, places)
	c.checkMounts(at, d.Resources, owned)
}

func (c *checker) result(r *Result) {
	switch r.Outcome {
	case OutcomeBuilt:
		if r.Manifest == nil || r.Digest == "" {
			c.tell(place{"outcome"}, `a module that was built has a "manifest" and its "digest"`)
		}
	case OutcomeFailed, OutcomeRefused:
		if r.Error == nil {
			c.tell(place{"outcome"}, `%s without an "error" that says why`, r.Outcome)
		}
		fallthrough
	case OutcomeCancelled:
		if r.Manifest != nil {
			c.tellKey(place{"manifest"}, "a build that was %s has no manifest", r.Outcome)
		}
	}
	if r.Manifest != nil {
		c.manifestAt(place{"manifest"}, r.Manifest)
	}
}
