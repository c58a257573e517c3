package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// Output is a node's declaration without epoch and generation, its hash filled in, and why
// each module that should be in it is not as it should be.
type Output struct {
	Declaration schema.Declaration
	Blocked     []api.Blocked // sorted by module and reason
	Resolution  Resolution
}

// Compose makes the declaration of input.Node.
func Compose(input Input) (Output, error) {
	resolution := Resolve(input.Mesh, input.Node)
	c := newComposer(input)
	for _, placed := range c.order(resolution.Modules) {
		c.module(placed)
	}
	declaration, err := c.declaration()
	if err != nil {
		return Output{}, err
	}
	slices.SortFunc(c.blocked, func(a, b api.Blocked) int {
		return strings.Compare(a.Module+"\x00"+a.Reason+"\x00"+a.Message, b.Module+"\x00"+b.Reason+"\x00"+b.Message)
	})
	return Output{Declaration: declaration, Blocked: c.blocked, Resolution: resolution}, nil
}

type composer struct {
	input       Input
	node        Node
	secrets     map[[2]string]Secret // module, name
	credentials map[[2]string]Credential
	owners      paths
	claims      map[string]string
	groups      map[string][]schema.Resource // by module
	depends     map[string][]string          // module to its providers on this node
	digests     map[string]string
	blocked     []api.Blocked
}

func newComposer(input Input) *composer {
	c := &composer{
		input: input, secrets: map[[2]string]Secret{}, credentials: map[[2]string]Credential{},
		claims: map[string]string{}, groups: map[string][]schema.Resource{},
		depends: map[string][]string{}, digests: map[string]string{},
	}
	for _, node := range input.Mesh.Nodes {
		if node.Name == input.Node {
			c.node = node
		}
	}
	for _, secret := range input.Secrets {
		c.secrets[[2]string{secret.Module, secret.Name}] = secret
	}
	for _, credential := range input.Credentials {
		c.credentials[[2]string{credential.Consumer, credential.Provision}] = credential
	}
	foundation := slices.Clone(input.Foundation)
	slices.SortFunc(foundation, func(a, b schema.Resource) int { return strings.Compare(a.ID, b.ID) })
	for _, resource := range foundation {
		c.owners.take(FoundationModule, resource)
	}
	if len(foundation) > 0 {
		c.groups[FoundationModule] = foundation
	}
	return c
}

// order puts the modules the node already has first, so that a newcomer, not the incumbent,
// is refused a claim or a path.
func (c *composer) order(modules []Placed) []Placed {
	had := func(p Placed) bool {
		return c.input.Previous != nil && c.input.Previous.Modules[p.Assignment.Module] != ""
	}
	out := slices.Clone(modules)
	slices.SortStableFunc(out, func(a, b Placed) int {
		switch {
		case had(a) && !had(b):
			return -1
		case had(b) && !had(a):
			return 1
		}
		return strings.Compare(a.Assignment.Module, b.Assignment.Module)
	})
	return out
}

// module adds one module's resources, or says why not and keeps what the node was told.
func (c *composer) module(placed Placed) {
	name := placed.Assignment.Module
	for _, binding := range placed.Bindings {
		if binding.Node == c.input.Node && binding.Module != name {
			c.depends[name] = append(c.depends[name], binding.Module)
		}
	}
	resources, blocked := c.resources(placed)
	if len(blocked) == 0 {
		blocked = c.owners.conflicts(name, resources)
	}
	if len(blocked) > 0 {
		c.blocked = append(c.blocked, blocked...)
		c.keep(name, blocked)
		return
	}
	c.add(name, c.input.Mesh.Manifests[name].Digest, resources)
	for _, claim := range c.input.Mesh.Manifests[name].Document.Claims {
		if label := ClaimLabel(claim); label != "" {
			c.claims[label] = name
		}
	}
}

func (c *composer) add(name, digest string, resources []schema.Resource) {
	c.digests[name] = digest
	if len(resources) > 0 {
		c.groups[name] = resources
	}
	for _, resource := range resources {
		c.owners.take(name, resource)
	}
}

// keep leaves a blocked module as the node was last told, because leaving it out would
// remove what runs. What is sealed to a key the node no longer has cannot be kept.
func (c *composer) keep(name string, blocked []api.Blocked) {
	if c.input.Previous == nil || c.input.Previous.Modules[name] == "" {
		return
	}
	for _, reason := range blocked {
		if reason.Reason == SecretNotUsable {
			return
		}
	}
	var kept []schema.Resource
	for _, resource := range c.input.Previous.Resources {
		if module, _, _ := strings.Cut(resource.ID, "/"); module != name {
			continue
		}
		if resource.Sealed != nil && resource.Sealed.Recipient != c.node.Fingerprint {
			return
		}
		kept = append(kept, resource)
	}
	if len(c.owners.conflicts(name, kept)) == 0 {
		c.add(name, c.input.Previous.Modules[name], kept)
	}
}

// declaration puts the groups in order of their dependencies and fills in the rest.
func (c *composer) declaration() (schema.Declaration, error) {
	declaration := Empty(c.input.Node)
	declaration.Modules = c.digests
	for _, module := range sortModules(slices.Sorted(maps.Keys(c.groups)), c.depends) {
		declaration.Resources = append(declaration.Resources, c.groups[module]...)
	}
	if store := c.input.ArtifactStore; store != nil {
		value, err := schema.Canonical(store)
		if err != nil {
			return declaration, fmt.Errorf("encode artifact-store of %s: %w", c.input.Node, err)
		}
		declaration.Host.Config[schema.ConfigArtifactStore] = value
	}
	hash, err := schema.HashDeclaration(declaration)
	declaration.Hash = hash
	return declaration, err
}
