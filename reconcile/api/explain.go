package api

import "time"

// TraceIn names what to follow: a commit or a manifest's digest (or at least four digits of
// one), a module, or a node.
type TraceIn struct {
	Subject string `json:"subject"`
}

// TraceOut is what became of it, one chain for each module it concerns.
type TraceOut struct {
	Subject string       `json:"subject"`
	Kind    string       `json:"kind"` // commit, digest, build, module, node
	Chains  []TraceChain `json:"chains"`
}

// TraceChain follows one module from a commit to the machines: commit, builds, manifest,
// declarations, reports. What has not come about is absent.
type TraceChain struct {
	Module     string      `json:"module"`
	Repository string      `json:"repository"`
	Path       string      `json:"path"`
	Commit     string      `json:"commit,omitempty"`
	Seen       time.Time   `json:"seen,omitzero"` // by the catalogue, as the source of the module
	Builds     []Build     `json:"builds,omitempty"`
	Digest     string      `json:"digest,omitempty"` // of the manifest
	Current    bool        `json:"current"`          // it is the manifest the mesh holds of the module
	Provenance string      `json:"provenance,omitempty"`
	Nodes      []TraceNode `json:"nodes"`
	Answer     string      `json:"answer"` // did it go out
	Next       string      `json:"next,omitempty"`
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
