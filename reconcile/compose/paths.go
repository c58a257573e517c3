package compose

import (
	"fmt"
	"path"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// paths remembers which module owns which path of the machine. A path has one owner, and
// nothing lies inside an archive but what it unpacks.
type paths struct {
	owned []ownedPath
}

type ownedPath struct {
	path, id, module string
	archive          bool
}

func (p *paths) take(module string, resource schema.Resource) {
	if owns(resource) {
		p.owned = append(p.owned, ownedPath{path.Clean(resource.Path), resource.ID, module, resource.Type == schema.TypeArchive})
	}
}

func owns(resource schema.Resource) bool {
	switch resource.Type {
	case schema.TypeDirectory, schema.TypeFile, schema.TypeArchive:
		return resource.Path != ""
	}
	return false
}

// conflicts names what of a module collides with what is already owned or with itself.
func (p *paths) conflicts(module string, resources []schema.Resource) []api.Blocked {
	var blocked []api.Blocked
	mine := paths{owned: p.owned[:len(p.owned):len(p.owned)]}
	for _, resource := range resources {
		if !owns(resource) {
			continue
		}
		at := path.Clean(resource.Path)
		for _, other := range mine.owned {
			inside := other.archive && within(at, other.path) || resource.Type == schema.TypeArchive && within(other.path, at)
			if at == other.path || inside {
				blocked = append(blocked, api.Blocked{
					Module: module, Reason: PathConflict,
					Message: fmt.Sprintf("resource %s wants %s, and %s owns %s", resource.ID, at, other.id, other.path),
					Remedy:  "give one of the two another path in its module.json, build and push",
				})
			}
		}
		mine.take(module, resource)
	}
	return blocked
}

// within says that a path lies below a directory.
func within(at, directory string) bool {
	return strings.HasPrefix(at, strings.TrimSuffix(directory, "/")+"/")
}
