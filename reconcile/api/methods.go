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

	RepositoryAdd     = Call[RepositoryAddIn, Repository]{"repositories", "add", "mesh:repositories:add", Mutation}
	RepositoryList    = Call[None, RepositoryListOut]{"repositories", "list", "mesh:repositories:read", Query}
	RepositoryRemove  = Call[RepositoryRef, None]{"repositories", "remove", "mesh:repositories:remove", Mutation}
	RepositoryRefresh = Call[RepositoryRef, None]{"repositories", "refresh", "mesh:repositories:refresh", Mutation}

	ModuleList   = Call[None, ModuleListOut]{"modules", "list", "mesh:modules:read", Query}
	ModuleBehind = Call[None, BehindOut]{"modules", "behind", "mesh:modules:read", Query}
	ModuleWhy    = Call[WhyIn, WhyOut]{"modules", "why", "mesh:modules:read", Query}

	BuildRequest = Call[BuildRequestIn, BuildRequestOut]{"builds", "request", "mesh:builds:request", Mutation}
	BuildList    = Call[BuildListIn, BuildListOut]{"builds", "list", "mesh:builds:read", Query}
	BuildShow    = Call[BuildShowIn, BuildShowOut]{"builds", "show", "mesh:builds:read", Query}
	BuildWatch   = Call[BuildWatchIn, BuildWatchOut]{"builds", "watch", "mesh:builds:read", Query}

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
	Repositories []Repository   `json:"repositories"`
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

// RepositoryAddIn asks the catalogue to watch a repository. Ref "" is the remote's HEAD.
// Watch is a bare repository's directory on the catalogue's machine, for fsnotify.
type RepositoryAddIn struct {
	URL   string `json:"url"`
	Ref   string `json:"ref,omitempty"`
	Watch string `json:"watch,omitempty"`
}

// RepositoryRef names a repository by URL.
type RepositoryRef struct {
	URL string `json:"url"`
}

// Repository as the catalogue last read it. State is "ok", "new" or a reason such as
// Unreachable, AuthenticationFailed, RefNotFound, EmptyRepository, TooLarge.
type Repository struct {
	URL         string    `json:"url"`
	Ref         string    `json:"ref"` // "" follows the remote's HEAD
	Watch       string    `json:"watch,omitempty"`
	State       string    `json:"state"`
	Message     string    `json:"message,omitempty"`
	Commit      string    `json:"commit,omitempty"`
	Modules     int       `json:"modules"`
	LastChecked time.Time `json:"lastChecked,omitzero"`
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
}

// RepositoryListOut lists repositories by URL.
type RepositoryListOut struct {
	Repositories []Repository `json:"repositories"`
}

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
	State      string   `json:"state"` // ok, behind, invalid, conflict, removed, failed
	Reasons    []Reason `json:"reasons,omitempty"`
	Commit     string   `json:"commit,omitempty"` // of the source
	Tree       string   `json:"tree,omitempty"`
	Digest     string   `json:"digest,omitempty"` // of the manifest
	BuiltFrom  string   `json:"builtFrom,omitempty"`
	Error      string   `json:"error,omitempty"` // of the source, file:line:column
	Nodes      []string `json:"nodes,omitempty"` // assigned to

	Seen      time.Time `json:"seen,omitzero"`      // the source's commit, by the catalogue
	Published time.Time `json:"published,omitzero"` // the manifest, as recorded here
}

// ModuleListOut lists modules by name.
type ModuleListOut struct {
	Modules []ModuleStatus `json:"modules"`
}

// BehindOut lists what is behind.
type BehindOut struct {
	Modules []ModuleStatus `json:"modules"`
	Nodes   []NodeBehind   `json:"nodes"`
	Broken  []ModuleStatus `json:"broken,omitempty"` // source invalid or in conflict: cannot be built as it stands
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

// BuildRequestIn asks for builds: either Behind, or Repository with Path and Ref, or
// Modules by name. Retry includes modules whose last build of this very input failed.
type BuildRequestIn struct {
	Behind     bool     `json:"behind,omitempty"`
	Retry      bool     `json:"retry,omitempty"`
	Modules    []string `json:"modules,omitempty"`
	Repository string   `json:"repository,omitempty"`
	Path       string   `json:"path,omitempty"`
	Ref        string   `json:"ref,omitempty"`
}

// BuildRequestOut names the builds requested. Consumers is the number of builders taking
// work at this moment; 0 means nobody is.
type BuildRequestOut struct {
	Builds    []Build `json:"builds"`
	Consumers int     `json:"consumers"`
}

// Build is one request and, when it has ended, its one result. State is queued, running or
// an outcome.
type Build struct {
	ID         string             `json:"id"`
	Repository string             `json:"repository"`
	Path       string             `json:"path"`
	Ref        string             `json:"ref,omitempty"`
	Module     string             `json:"module,omitempty"`
	State      string             `json:"state"`
	Digest     string             `json:"digest,omitempty"`
	Commit     string             `json:"commit,omitempty"`
	Error      *schema.BuildError `json:"error,omitempty"`
	Phases     []schema.PhaseTime `json:"phases,omitempty"`
	Builder    string             `json:"builder,omitempty"`
	Requested  time.Time          `json:"requested"`
	Started    time.Time          `json:"started,omitzero"`
	Ended      time.Time          `json:"ended,omitzero"`
}

// BuildListIn limits a listing; Limit 0 is 50. Module "" is all.
type BuildListIn struct {
	Module string `json:"module,omitempty"`
	Limit  int    `json:"limit,omitempty"`
}

// BuildListOut lists builds, newest first.
type BuildListOut struct {
	Builds []Build `json:"builds"`
}

// BuildShowIn names a build by id, or a unique prefix of one.
type BuildShowIn struct {
	ID string `json:"id"`
}

// BuildShowOut is a build with its artifacts and log tail.
type BuildShowOut struct {
	Build     Build                   `json:"build"`
	Artifacts map[string]schema.Built `json:"artifacts,omitempty"`
	Log       string                  `json:"log,omitempty"`
}

// BuildWatchIn waits up to 10 s for news of the builds named, after the cursor.
type BuildWatchIn struct {
	IDs    []string `json:"ids"`
	Cursor int64    `json:"cursor,omitempty"`
}

// BuildWatchOut is what has happened since the cursor, and every build's state now.
type BuildWatchOut struct {
	Builds    []Build           `json:"builds"`
	Progress  []schema.Progress `json:"progress,omitempty"`
	Cursor    int64             `json:"cursor"`
	Consumers int               `json:"consumers"`
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
}

// BuilderListOut lists builders by node.
type BuilderListOut struct {
	Builders []Builder `json:"builders"`
}
