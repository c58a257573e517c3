package provenance

import (
	"maps"
	"slices"

	"github.com/mesh-control/mesh/schema"
)

// subjects are the manifest and every content it names, the manifest first.
func subjects(b Build) []Resource {
	place := schema.RegistryName + "/modules/" + b.Module
	all := []Resource{{Name: place, Digest: sha256Digest(b.Digest)}}
	for _, name := range slices.Sorted(maps.Keys(b.Artifacts)) {
		built := b.Artifacts[name]
		all = append(all, Resource{Name: place + "/" + name, Digest: sha256Digest(built.Digest), MediaType: built.MediaType})
		if built.Image != "" {
			all = append(all, Resource{Name: place + "/" + name + "#image", Digest: sha256Digest(built.Image)})
		}
	}
	return all
}

// dependencies are the commit, what was mirrored, and whatever else was used, each once.
func dependencies(b Build) []Resource {
	all := []Resource{Commit(b.Source.Repository, b.Source.Ref, b.Source.Commit)}
	for _, name := range slices.Sorted(maps.Keys(b.Artifacts)) {
		if up := b.Artifacts[name].Upstream; up != nil {
			all = append(all, Image(up.Reference, up.Digest))
		}
	}
	for _, used := range b.Used {
		same := func(r Resource) bool { return r.URI == used.URI && maps.Equal(r.Digest, used.Digest) }
		if !slices.ContainsFunc(all, same) {
			all = append(all, used)
		}
	}
	return all
}
