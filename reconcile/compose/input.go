package compose

import "github.com/mesh-control/mesh/schema"

// FoundationModule is the name under which resources that genesis laid, and provisions that
// no module provides, stand.
const FoundationModule = "foundation"

// Node is what composition knows of a machine. Empty Platform and zero Schema mean that the
// node has not said yet.
type Node struct {
	Name         string
	Address      string
	Platform     string // os/arch
	Schema       int    // newest document schema its host knows
	Capabilities []string
	Fingerprint  string // of its current sealing key
}

// Assignment is a module on a node.
type Assignment struct {
	Module   string
	Node     string
	Settings map[string]string
	Bindings map[string]string // provision to "module@node"
}

// Manifest is a built manifest with its digest.
type Manifest struct {
	Digest   string
	Document schema.Manifest
}

// BuiltIn is a mesh-scoped provision of the foundation. A module that provides the same
// takes its place.
type BuiltIn struct {
	Provision string
	Host      string
	Port      int
}

// Mesh is what bindings are decided from.
type Mesh struct {
	Nodes       []Node
	Assignments []Assignment
	Manifests   map[string]Manifest // by module
	BuiltIn     []BuiltIn
}

// Secret is one of a module's own secrets on the node being composed.
type Secret struct {
	Module string
	Name   string
	Given  bool
	Sealed schema.Sealed
}

// Credential is a provision's credential for a consumer on the node being composed.
type Credential struct {
	Consumer     string
	Provision    string
	Provider     string // module, or FoundationModule
	ProviderNode string // empty for the foundation
	Sealed       schema.Sealed
}

// Grant is what a consumer anywhere asks of a provider on the node being composed.
type Grant struct {
	Provider     string
	Provision    string
	Consumer     string
	ConsumerNode string
	Sealed       schema.Sealed
}

// Input is everything a node's declaration follows from.
type Input struct {
	Mesh          Mesh
	Node          string
	Secrets       []Secret
	Credentials   []Credential
	Grants        []Grant
	Foundation    []schema.Resource // ids "foundation/<id>"
	ArtifactStore *schema.ArtifactStore
	// Previous is what the node was last told; nil if never. A module that is blocked now
	// stays as it was told then.
	Previous *schema.Declaration
}
