package compose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// ClaimLabel is how an exclusive claim is named; "" for a device, which is booked by count.
func ClaimLabel(claim schema.Claim) string {
	switch {
	case claim.Role != "":
		return claim.Role
	case claim.Port != 0:
		return fmt.Sprintf("port %d", claim.Port)
	}
	return ""
}

// MissingCapabilities are those a module needs and a node does not report.
func MissingCapabilities(document schema.Manifest, node Node) []string {
	var missing []string
	for _, capability := range document.Capabilities {
		if !slices.Contains(node.Capabilities, capability) {
			missing = append(missing, capability)
		}
	}
	return missing
}

// resources makes a module's resources with everything filled in, secrets first.
func (c *composer) resources(placed Placed) ([]schema.Resource, []api.Blocked) {
	name := placed.Assignment.Module
	manifest, ok := c.input.Mesh.Manifests[name]
	if !ok {
		return nil, []api.Blocked{{
			Module: name, Reason: NotBuilt, Message: "the mesh holds no manifest of it",
			Remedy: "mesh build --behind",
		}}
	}
	blocked := slices.Clone(placed.Blocked)
	blocked = append(blocked, c.fits(name, manifest.Document)...)
	given, err := settings(manifest.Document.Settings, placed.Assignment.Settings)
	if err != nil {
		blocked = append(blocked, api.Blocked{
			Module: name, Reason: SettingInvalid, Message: err.Error(),
			Remedy: fmt.Sprintf("mesh assign %s --node %s --set …", name, c.node.Name),
		})
	}
	files, missing := c.sealed(placed, manifest.Document)
	if blocked = append(blocked, missing...); len(blocked) > 0 {
		return nil, blocked
	}
	v := values{module: name, document: manifest.Document, node: c.node, settings: given, bindings: placed.Bindings}
	out := make([]schema.Resource, 0, len(manifest.Document.Resources)+len(files))
	for _, resource := range manifest.Document.Resources {
		expanded, problem := v.expand(resource)
		if problem != nil {
			blocked = append(blocked, *problem)
			continue
		}
		out = append(out, c.local(name, expanded, files))
	}
	if len(blocked) > 0 {
		return nil, blocked
	}
	for i := range files {
		files[i].Path, _ = v.text(files[i].Path)
	}
	out, cyclic := sortResources(append(files, out...))
	if len(cyclic) > 0 {
		return nil, []api.Blocked{{
			Module: name, Reason: DependencyCycle,
			Message: "resources wait for each other: " + strings.Join(cyclic, ", "),
		}}
	}
	return out, nil
}

// local names a resource, and what it comes after, by the declaration's ids. A program
// starts after every secret of its module has landed.
func (c *composer) local(module string, resource schema.Resource, files []schema.Resource) schema.Resource {
	resource.ID = module + "/" + resource.ID
	after := make([]string, 0, len(resource.After)+len(files))
	for _, id := range resource.After {
		after = append(after, module+"/"+id)
	}
	for i, id := range resource.RestartOn {
		if i == 0 {
			resource.RestartOn = slices.Clone(resource.RestartOn)
		}
		resource.RestartOn[i] = module + "/" + id
	}
	if resource.Type == schema.TypeContainer || resource.Type == schema.TypeService {
		for _, file := range files {
			if !strings.Contains(file.ID, grantPrefix) {
				after = append(after, file.ID)
			}
		}
	}
	slices.Sort(after)
	if resource.After = slices.Compact(after); len(resource.After) == 0 {
		resource.After = nil
	}
	return resource
}

// fits checks a manifest against the node: schema, capabilities, platform, claims, and that
// nothing in it still waits to be built.
func (c *composer) fits(name string, document schema.Manifest) []api.Blocked {
	var blocked []api.Blocked
	block := func(reason, remedy, format string, args ...any) {
		blocked = append(blocked, api.Blocked{Module: name, Reason: reason, Message: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if c.node.Schema != 0 && document.Schema > c.node.Schema {
		block(SchemaTooNew, "upgrade mesh-host on "+c.node.Name,
			"its manifest has schema %d and %s knows %d", document.Schema, c.node.Name, c.node.Schema)
	}
	for _, capability := range MissingCapabilities(document, c.node) {
		block(CapabilityMissing, "mesh unassign "+name+" --node "+c.node.Name,
			"node %s does not report the capability %q", c.node.Name, capability)
	}
	for _, claim := range document.Claims {
		if holder := c.claims[ClaimLabel(claim)]; holder != "" {
			block(ClaimHeld, "mesh unassign "+holder+" --node "+c.node.Name,
				"%s is claimed by %s on node %s", ClaimLabel(claim), holder, c.node.Name)
		}
	}
	for artifact, built := range document.Artifacts {
		if c.node.Platform != "" && !supports(built.Platforms, c.node.Platform) {
			block(PlatformMissing, "build "+name+" for "+c.node.Platform,
				"artifact %s is for %s and node %s is %s", artifact, strings.Join(built.Platforms, ", "), c.node.Name, c.node.Platform)
		}
	}
	for _, resource := range document.Resources {
		if resource.Artifact != "" {
			block(ArtifactKeyword, "mesh build "+document.Source.Repository+" "+document.Source.Path,
				"resource %s of its manifest still says artifact %q", resource.ID, resource.Artifact)
		}
	}
	return blocked
}

// supports says whether a node of platform os/arch finds itself in a list; a variant
// (linux/arm64/v8) counts as its architecture. No list is every platform.
func supports(platforms []string, platform string) bool {
	if len(platforms) == 0 {
		return true
	}
	for _, offered := range platforms {
		if offered == platform || strings.HasPrefix(offered, platform+"/") {
			return true
		}
	}
	return false
}
