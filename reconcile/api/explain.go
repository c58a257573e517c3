package api

import "time"

// TraceIn names what to follow: a commit or a manifest's digest (or at least four digits of
// one), a module, or a node.
type TraceIn struct {
	Subject string `json:"subject"`
	// SBOM asks for the lists of what bundles were made of.
	SBOM bool `json:"sbom,omitempty"`
}

// TraceOut is what became of it, one chain for each module it concerns.
type TraceOut struct {
	Subject string       `json:"subject"`
	Kind    string       `json:"kind"` // commit, digest, build, module, node
	Chains  []TraceChain `json:"chains"`
	SBOMs   []SBOM       `json:"sboms,omitempty"`
}

// What the check of a manifest's provenance gave.
const (
	ProvenanceVerified    = "verified"
	ProvenanceMissing     = "missing"     // none was recorded, or the registry has it no longer
	ProvenanceUnreachable = "unreachable" // the registry cannot be asked
	ProvenanceAltered     = "altered"     // bytes are not those that were signed, or no statement
	ProvenanceUnknownKey  = "unknown-key" // signed by nobody the mesh issued a key
	ProvenanceWithdrawn   = "withdrawn"   // signed with a key withdrawn before the build was recorded
	ProvenanceContradicts = "contradicts" // signed, and says something else than the record
)

// ProvenanceCheck is what a builder signed of a build, held against what the mesh recorded.
// Message says why it is not verified, or what to know of it. What a state forbids to believe
// is absent.
type ProvenanceCheck struct {
	State    string    `json:"state"`
	Message  string    `json:"message,omitempty"`
	Digest   string    `json:"digest,omitempty"`  // of the referrer in modules/<module>
	Builder  string    `json:"builder,omitempty"` // whose key signed it
	Key      string    `json:"key,omitempty"`     // PEM, ed25519
	Build    string    `json:"build,omitempty"`
	Commit   string    `json:"commit,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	SBOMs    []SBOMRef `json:"sboms,omitempty"`
	Envelope string    `json:"envelope,omitempty"` // DSSE, byte for byte as the registry has it
}

// SBOMRef is the list of what a bundle was made of, by the digest that its builder signed.
type SBOMRef struct {
	Artifact string `json:"artifact"`
	Digest   string `json:"digest"`
}

// SBOM is a [SBOMRef] with its CycloneDX document. Signed is the state of the provenance that
// vouches for it.
type SBOM struct {
	Module   string `json:"module"`
	Artifact string `json:"artifact"`
	Manifest string `json:"manifest"`
	Digest   string `json:"digest"`
	Signed   string `json:"signed"`
	Document string `json:"document"` // byte for byte
}

// TraceChain follows one module from a commit to the machines: commit, builds, manifest,
// declarations, reports. What has not come about is absent.
type TraceChain struct {
	Module     string    `json:"module"`
	Repository string    `json:"repository"`
	Path       string    `json:"path"`
	Commit     string    `json:"commit,omitempty"`
	Seen       time.Time `json:"seen,omitzero"` // by the catalogue, as the source of the module
	Builds     []Build   `json:"builds,omitempty"`
	Digest     string    `json:"digest,omitempty"`     // of the manifest
	Current    bool      `json:"current"`              // it is the manifest the mesh holds of the module
	Provenance string    `json:"provenance,omitempty"` // digest, as its build recorded it

	Check  *ProvenanceCheck `json:"check,omitempty"`
	Nodes  []TraceNode      `json:"nodes"`
	Answer string           `json:"answer"` // did it go out
	Next   string           `json:"next,omitempty"`
}

// TraceNode is how far the manifest has come on a node. State is running, failing, pushed,
// declared, blocked, replaced or absent.
type TraceNode struct {
	Node       string    `json:"node"`
	State      string    `json:"state"`
	Generation int64     `json:"generation,omitempty"` // first pushed with it
	PushedAt   time.Time `json:"pushedAt,omitzero"`
	PushedBy   string    `json:"pushedBy,omitempty"`
	AppliedAt  time.Time `json:"appliedAt,omitzero"`
	Running    string    `json:"running,omitempty"` // manifest digest that runs there now
	Note       string    `json:"note,omitempty"`
}

// GraphIn limits the graph to what a module brings along, or with Dependents to what needs
// it. Module "" is all.
type GraphIn struct {
	Module     string `json:"module,omitempty"`
	Dependents bool   `json:"dependents,omitempty"`
}

// GraphOut is what modules provide and require, by name.
type GraphOut struct {
	Modules []GraphModule `json:"modules"`
	Edges   []GraphEdge   `json:"edges"`
	Cycles  [][]string    `json:"cycles,omitempty"` // modules that require each other in a circle
}

// GraphModule is one module.
type GraphModule struct {
	Module   string   `json:"module"`
	State    string   `json:"state"`
	Provides []string `json:"provides,omitempty"`
	Nodes    []string `json:"nodes,omitempty"`
}

// States of a requirement in the graph.
const (
	EdgeResolved   = "resolved"   // one module provides it
	EdgeAmbiguous  = "ambiguous"  // several do: an assignment must bind one
	EdgeUnresolved = "unresolved" // nobody does
)

// GraphEdge is one module's requirement.
type GraphEdge struct {
	Module    string   `json:"module"`
	Provision string   `json:"provision"`
	Optional  bool     `json:"optional,omitempty"`
	Providers []string `json:"providers"`
	State     string   `json:"state"`
}
