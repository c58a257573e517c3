package schema

import "encoding/json"

// Module is a module.json, as a person writes it beside the source it describes.
type Module struct {
	Schema       string              `json:"$schema,omitempty"`
	Name         string              `json:"name"`
	Description  string              `json:"description,omitempty"`
	Provides     []Provision         `json:"provides,omitempty"`
	Requires     []Requirement       `json:"requires,omitempty"`
	Claims       []Claim             `json:"claims,omitempty"`
	Capabilities []string            `json:"capabilities,omitempty"`
	Settings     map[string]Setting  `json:"settings,omitempty"`
	Artifacts    map[string]Artifact `json:"artifacts,omitempty"`
	Resources    []Resource          `json:"resources,omitempty"`
	// Secrets maps a required provision to the path where its credential lands.
	Secrets map[string]string `json:"secrets,omitempty"`
	// OwnSecrets maps a name of the module's choosing to where its value lands.
	OwnSecrets map[string]OwnSecret `json:"own-secrets,omitempty"`
}

// Provision is a named thing a module provides. Scope is "node" or "mesh".
type Provision struct {
	Name  string `json:"name"`
	Scope string `json:"scope"`
	Port  int    `json:"port,omitempty"`
	// Grants is the directory on the provider's node where consumers' requests arrive
	// as sealed files, each a [Grant]. Empty: consumers get an address and no credential.
	Grants string `json:"grants,omitempty"`
}

// Requirement is something a module needs provided. In module.json a bare string is
// short for {"name": string}.
type Requirement struct {
	Name     string `json:"name"`
	Optional bool   `json:"optional,omitempty"`
}

// Claim is held by at most one module on a node. Exactly one of Role, Port and Device is
// set; in module.json a bare string is a role.
type Claim struct {
	Role     string `json:"role,omitempty"`
	Port     int    `json:"port,omitempty"`
	Device   string `json:"device,omitempty"`
	Count    int    `json:"count,omitempty"`
	Topology string `json:"topology,omitempty"`
}

// Setting is a typed, defaulted value an assignment may give. Type is one of "string",
// "integer", "number", "boolean".
type Setting struct {
	Type        string          `json:"type"`
	Description string          `json:"description,omitempty"`
	Default     json.RawMessage `json:"default,omitempty"`
	Minimum     *float64        `json:"minimum,omitempty"`
	Maximum     *float64        `json:"maximum,omitempty"`
	Enum        []string        `json:"enum,omitempty"`
}

// The kinds of artifact.
const (
	KindImage    = "image"
	KindBundle   = "bundle"
	KindArchive  = "archive"
	KindUpstream = "upstream"
)

// Artifact is a recipe: what a module has built, or borrows.
type Artifact struct {
	Kind string `json:"kind"`
	// Path is relative to the module's path (archive, bundle). "." is all of it.
	Path string `json:"path,omitempty"`
	// Language of a bundle: "go", "node", "rust", "python". Implied by the files in Path
	// when there is exactly one of go.mod, package.json, Cargo.toml, pyproject.toml.
	Language string `json:"language,omitempty"`
	// Package is the main package a Go bundle is built from, as "./cmd/x"; default ".".
	Package string `json:"package,omitempty"`
	// Base names an upstream artifact of this module that a bundle used by a container is
	// laid on; empty is the empty image.
	Base string `json:"base,omitempty"`
	// Entrypoint of a bundle used by a container; default is the one program built.
	Entrypoint []string `json:"entrypoint,omitempty"`
	// Dockerfile, Context and Args describe an image. Context is the directory, default
	// the Dockerfile's.
	Dockerfile string            `json:"dockerfile,omitempty"`
	Context    string            `json:"context,omitempty"`
	Args       map[string]string `json:"args,omitempty"`
	// Reference of an upstream image, with tag or digest.
	Reference string `json:"reference,omitempty"`
	// Platforms kept of an upstream index, as "os/arch"; empty keeps all.
	Platforms []string `json:"platforms,omitempty"`
}

// OwnSecret is where a module's own secret lands. In module.json a bare string is the path.
type OwnSecret struct {
	Path string `json:"path"`
	// Given: the value comes from outside and is never generated.
	Given bool `json:"given,omitempty"`
}
