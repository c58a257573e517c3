package api

import "time"

// Reason is a machine-readable reason with the words a person reads.
type Reason struct {
	Code    string `json:"code"` // NeverBuilt, SourceChanged, RecipeChanged, UpstreamMoved, LastBuildFailed, …
	Message string `json:"message"`
}

// ModuleStatus is a module with its source, manifest and whether it is behind.
type ModuleStatus struct {
	Module     string   `json:"module"`
	Repository string   `json:"repository"`
	Path       string   `json:"path"`
	State      string   `json:"state"` // ok, behind, invalid, conflict, removed, failed, suspended
	Reasons    []Reason `json:"reasons,omitempty"`
	Commit     string   `json:"commit,omitempty"` // of the source
	Tree       string   `json:"tree,omitempty"`
	Digest     string   `json:"digest,omitempty"` // of the manifest
	BuiltFrom  string   `json:"builtFrom,omitempty"`
	Error      string   `json:"error,omitempty"`     // of the source, file:line:column
	Suspended  string   `json:"suspended,omitempty"` // who left it alone: itself or its repository
	Nodes      []string `json:"nodes,omitempty"`     // assigned to

	Seen      time.Time `json:"seen,omitzero"`      // the source's commit, by the catalogue
	Published time.Time `json:"published,omitzero"` // the manifest, as recorded here
}

// ModuleListOut lists modules by name.
type ModuleListOut struct {
	Modules []ModuleStatus `json:"modules"`
}

// ModuleSuspendIn names a module that building what is behind is to leave alone, or take again.
type ModuleSuspendIn struct {
	Module    string `json:"module"`
	Suspended bool   `json:"suspended"`
}

// BehindOut lists what is behind, and what makes the list less than sure: a catalogue that
// does not look, and repositories that are not read.
type BehindOut struct {
	Catalogue Catalogue      `json:"catalogue"`
	Unread    []Repository   `json:"unread,omitempty"`
	Modules   []ModuleStatus `json:"modules"`
	Nodes     []NodeBehind   `json:"nodes"`
	Broken    []ModuleStatus `json:"broken,omitempty"` // source invalid or in conflict: cannot be built as it stands
}

// NodeBehind says why a node is behind.
type NodeBehind struct {
	Node    string   `json:"node"`
	Reasons []Reason `json:"reasons"`
}

// WhyIn asks for the chain of facts of a module, on a node if given.
type WhyIn struct {
	Module string `json:"module"`
	Node   string `json:"node,omitempty"`
}

// WhyOut is the chain of facts, oldest first, and the command that comes next.
type WhyOut struct {
	Facts []Fact `json:"facts"`
	Next  string `json:"next,omitempty"`
}

// Fact is one durable fact with its time.
type Fact struct {
	Fact    string    `json:"fact"` // seen, built, published, declared, pushed, applied
	Message string    `json:"message"`
	At      time.Time `json:"at,omitzero"`
	OK      bool      `json:"ok"`
}
