package api

import (
	"time"

	"github.com/mesh-control/mesh/schema"
)

// The methods, by group. Names are the route's.
var (
	SystemStatus    = Call[None, Status]{"system", "status", "mesh:system:read", Query}
	SystemSelfCheck = Call[None, SelfCheck]{"system", "selfCheck", "mesh:system:read", Query}
	SystemVersion   = Call[None, VersionInfo]{"system", "version", "mesh:system:read", Query}

	RepositoryAdd              = Call[RepositoryAddIn, Repository]{"repositories", "add", "mesh:repositories:add", Mutation}
	RepositoryList             = Call[None, RepositoryListOut]{"repositories", "list", "mesh:repositories:read", Query}
	RepositoryRemove           = Call[RepositoryRef, None]{"repositories", "remove", "mesh:repositories:remove", Mutation}
	RepositoryRefresh          = Call[RepositoryRef, None]{"repositories", "refresh", "mesh:repositories:refresh", Mutation}
	RepositoryCredential       = Call[RepositoryCredentialIn, RepositoryCredentialOut]{"repositories", "credential", "mesh:repositories:credential", Mutation}
	RepositoryCredentialRemove = Call[RepositoryRef, None]{"repositories", "removeCredential", "mesh:repositories:credential", Mutation}
	RepositoryHook             = Call[RepositoryHookIn, RepositoryHookOut]{"repositories", "hook", "mesh:repositories:hook", Mutation}
	RepositoryHookRemove       = Call[RepositoryRef, None]{"repositories", "removeHook", "mesh:repositories:hook", Mutation}
	RepositorySuspend          = Call[RepositorySuspendIn, None]{"repositories", "suspend", "mesh:repositories:suspend", Mutation}

	ModuleList    = Call[None, ModuleListOut]{"modules", "list", "mesh:modules:read", Query}
	ModuleBehind  = Call[None, BehindOut]{"modules", "behind", "mesh:modules:read", Query}
	ModuleSuspend = Call[ModuleSuspendIn, None]{"modules", "suspend", "mesh:modules:suspend", Mutation}
	ModuleWhy     = Call[WhyIn, WhyOut]{"modules", "why", "mesh:modules:read", Query}
	ModuleTrace   = Call[TraceIn, TraceOut]{"modules", "trace", "mesh:modules:read", Query}
	ModuleGraph   = Call[GraphIn, GraphOut]{"modules", "graph", "mesh:modules:read", Query}

	BuildRequest = Call[BuildRequestIn, BuildRequestOut]{"builds", "request", "mesh:builds:request", Mutation}
	BuildList    = Call[BuildListIn, BuildListOut]{"builds", "list", "mesh:builds:read", Query}
	BuildShow    = Call[BuildShowIn, BuildShowOut]{"builds", "show", "mesh:builds:read", Query}
	BuildWatch   = Call[BuildWatchIn, BuildWatchOut]{"builds", "watch", "mesh:builds:read", Query}
	BuildCancel  = Call[BuildCancelIn, Build]{"builds", "cancel", "mesh:builds:cancel", Mutation}

	NodeAdd    = Call[NodeAddIn, Node]{"nodes", "add", "mesh:nodes:add", Mutation}
	NodeList   = Call[None, NodeListOut]{"nodes", "list", "mesh:nodes:read", Query}
	NodeShow   = Call[NodeRef, NodeShowOut]{"nodes", "show", "mesh:nodes:read", Query}
	NodeForget = Call[NodeRef, None]{"nodes", "forget", "mesh:nodes:forget", Mutation}
	NodeLabel  = Call[NodeLabelIn, Node]{"nodes", "label", "mesh:nodes:label", Mutation}

	AssignmentAdd    = Call[AssignIn, AssignOut]{"assignments", "add", "mesh:assignments:write", Mutation}
	AssignmentRemove = Call[UnassignIn, None]{"assignments", "remove", "mesh:assignments:write", Mutation}
	AssignmentList   = Call[None, AssignmentListOut]{"assignments", "list", "mesh:assignments:read", Query}

	DeliveryPlan  = Call[PlanIn, PlanOut]{"delivery", "plan", "mesh:delivery:read", Query}
	DeliveryPush  = Call[PushIn, PushOut]{"delivery", "push", "mesh:delivery:push", Mutation}
	DeliveryWatch = Call[DeliveryWatchIn, DeliveryWatchOut]{"delivery", "watch", "mesh:delivery:read", Query}

	SecretGive = Call[SecretGiveIn, None]{"secrets", "give", "mesh:secrets:give", Mutation}
	SecretList = Call[None, SecretListOut]{"secrets", "list", "mesh:secrets:read", Query}

	BuilderIssue = Call[NodeRef, BuilderIssueOut]{"builders", "issue", "mesh:builders:issue", Mutation}
	BuilderList  = Call[None, BuilderListOut]{"builders", "list", "mesh:builders:read", Query}
)

// Status is the mesh at a glance.
type Status struct {
	Mesh         string         `json:"mesh"`
	Version      string         `json:"version"`
	Catalogue    Catalogue      `json:"catalogue"`
	Repositories []Repository   `json:"repositories"`
	Notices      []NoticeCount  `json:"notices,omitempty"` // of no watched repository
	Modules      []ModuleStatus `json:"modules"`
	Nodes        []Node         `json:"nodes"`
	Builders     []Builder      `json:"builders"`
	Queue        int            `json:"queue"` // builds waiting or running
}

// SelfCheck is the report behind `mesh doctor`; OK is false when any finding is an error.
type SelfCheck struct {
	OK       bool      `json:"ok"`
	Findings []Finding `json:"findings"`
}

// Finding is something an operator can act on. Severity is error, warning or info.
type Finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Fix      string `json:"fix"`
	Count    int    `json:"count,omitempty"`
}

// VersionInfo of the controller.
type VersionInfo struct {
	Version string `json:"version"`
	Mesh    string `json:"mesh"`
}

// NodeAddIn records a node that genesis made or that has joined. Keys are public halves.
type NodeAddIn struct {
	Name       string            `json:"name"`
	Address    string            `json:"address"`
	Identity   []byte            `json:"identity"` // ed25519 public key
	SealingKey []byte            `json:"sealingKey"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// Node is a machine in the mesh. State is one of applied, behind, pushed, failed, refused,
// rolled-back, silent, never-heard.
type Node struct {
	Name         string            `json:"name"`
	Address      string            `json:"address"`
	State        string            `json:"state"`
	Reasons      []Reason          `json:"reasons,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Capabilities []string          `json:"capabilities,omitempty"`
	DeclaredAt   time.Time         `json:"declaredAt,omitzero"` // when what it should be last changed
	Pushed       int64             `json:"pushed"`              // generation last pushed
	PushedAt     time.Time         `json:"pushedAt,omitzero"`
	Applied      int64             `json:"applied"`            // generation last applied
	AppliedAt    time.Time         `json:"appliedAt,omitzero"` // when it first said so
	LastReport   time.Time         `json:"lastReport,omitzero"`
	Outcome      string            `json:"outcome,omitempty"`
	Cause        string            `json:"cause,omitempty"`
	Modules      []NodeModule      `json:"modules,omitempty"`
}

// NodeModule is a module on a node: what runs and what would.
type NodeModule struct {
	Module   string `json:"module"`
	Running  string `json:"running,omitempty"`  // manifest digest applied
	Declared string `json:"declared,omitempty"` // manifest digest composed now
	State    string `json:"state"`              // running, failing, behind, blocked, pending
	Blocked  string `json:"blocked,omitempty"`
}

// NodeRef names a node.
type NodeRef struct {
	Node string `json:"node"`
}

// NodeListOut lists nodes by name.
type NodeListOut struct {
	Nodes []Node `json:"nodes"`
}

// NodeShowOut is a node with its resources as last reported.
type NodeShowOut struct {
	Node      Node                    `json:"node"`
	Resources []schema.ResourceStatus `json:"resources"`
	Agent     schema.Agent            `json:"agent"`
}

// NodeLabelIn sets labels; an empty value removes one.
type NodeLabelIn struct {
	Node   string            `json:"node"`
	Labels map[string]string `json:"labels"`
}

// AssignIn puts a module on a node. Settings are strings, converted to their declared type.
// Bindings map a provision to "module@node".
type AssignIn struct {
	Module   string            `json:"module"`
	Node     string            `json:"node"`
	Settings map[string]string `json:"settings,omitempty"`
	Bindings map[string]string `json:"bindings,omitempty"`
}

// AssignOut says what the assignment brought along and what it waits for.
type AssignOut struct {
	Assignment Assignment `json:"assignment"`
	Notes      []string   `json:"notes,omitempty"`
}

// UnassignIn takes a module off a node.
type UnassignIn struct {
	Module string `json:"module"`
	Node   string `json:"node"`
}

// Assignment is a module on a node.
type Assignment struct {
	Module   string            `json:"module"`
	Node     string            `json:"node"`
	Settings map[string]string `json:"settings,omitempty"`
	Bindings map[string]string `json:"bindings,omitempty"`
	Origin   string            `json:"origin"` // "hand", "placer", "genesis", or "brought"
}

// AssignmentListOut lists assignments by node and module.
type AssignmentListOut struct {
	Assignments []Assignment `json:"assignments"`
}

// PlanIn asks what a push would change: nodes by name, or every node that is behind.
type PlanIn struct {
	Nodes  []string `json:"nodes,omitempty"`
	Behind bool     `json:"behind,omitempty"`
}

// PlanOut is the plan per node. Empty: nothing would change.
type PlanOut struct {
	Nodes []NodePlan `json:"nodes"`
}

// NodePlan is what a push would change on a node. Hash locks a push to it.
type NodePlan struct {
	Node    string    `json:"node"`
	Hash    string    `json:"hash"`
	Changes []Change  `json:"changes"`
	Blocked []Blocked `json:"blocked,omitempty"`
}

// Change is one resource's. Action is create, update, recreate or remove.
type Change struct {
	Resource string `json:"resource"`
	Type     string `json:"type"`
	Action   string `json:"action"`
	Detail   string `json:"detail,omitempty"` // secrets masked
}

// Blocked says why a module does not go out, and what to do.
type Blocked struct {
	Module  string `json:"module"`
	Reason  string `json:"reason"` // constant: SecretNotGiven, Unresolved, NotBuilt, …
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// PushIn pushes exactly the plans shown: node to hash. A hash that no longer holds is a
// conflict.
type PushIn struct {
	Plans map[string]string `json:"plans"`
}

// PushOut is one line per node.
type PushOut struct {
	Nodes []NodePush `json:"nodes"`
}

// NodePush says what happened to one node's push. State is pushed, applied, failed,
// refused, rolled-back, waiting or conflict.
type NodePush struct {
	Node       string    `json:"node"`
	Generation int64     `json:"generation,omitempty"`
	State      string    `json:"state"`
	Message    string    `json:"message,omitempty"`
	Blocked    []Blocked `json:"blocked,omitempty"`
	LastReport time.Time `json:"lastReport,omitzero"`
}

// DeliveryWatchIn waits up to 10 s for the named nodes to reach the generations given.
type DeliveryWatchIn struct {
	Generations map[string]int64 `json:"generations"`
}

// DeliveryWatchOut is each node's state now; Done when every one has settled.
type DeliveryWatchOut struct {
	Nodes []NodePush `json:"nodes"`
	Done  bool       `json:"done"`
}

// SecretGiveIn gives a module's own secret on a node. The value travels once, over TLS, and
// is sealed before it is stored.
type SecretGiveIn struct {
	Module string `json:"module"`
	Name   string `json:"name"`
	Node   string `json:"node"`
	Value  []byte `json:"value"`
}

// SecretInfo describes a secret, never its value. Origin is generated or given.
type SecretInfo struct {
	Node   string    `json:"node"`
	Module string    `json:"module"`
	Name   string    `json:"name"`
	Origin string    `json:"origin"`
	Made   time.Time `json:"made"`
	Usable bool      `json:"usable"` // sealed to the node's current key
}

// SecretListOut lists secrets by node, module and name.
type SecretListOut struct {
	Secrets []SecretInfo `json:"secrets"`
}

// BuilderIssueOut says which account was made; nothing secret.
type BuilderIssueOut struct {
	Node    string `json:"node"`
	Account string `json:"account"`
}

// Builder is a node's builder. Connected: it consumes the queue at this moment.
type Builder struct {
	Node      string    `json:"node"`
	Account   string    `json:"account"`
	Connected bool      `json:"connected"`
	LastBuild time.Time `json:"lastBuild,omitzero"`
	// Key is the fingerprint of what is sealed to it alone, such as private repositories'
	// credentials; "" of one that was issued before builders had keys.
	Key string `json:"key,omitempty"`
}

// BuilderListOut lists builders by node.
type BuilderListOut struct {
	Builders []Builder `json:"builders"`
}
