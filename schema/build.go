package schema

import (
	"encoding/json"
	"time"
)

// Job is one request to a builder. ID is the correlation id.
type Job struct {
	Schema     int    `json:"schema"`
	ID         string `json:"id"`
	Repository string `json:"repository"`
	Path       string `json:"path"`
	Ref        string `json:"ref,omitempty"` // resolved by the builder when it builds; "" is the remote's HEAD
	Module     string `json:"module,omitempty"`
	// Credentials is what reading a private repository takes, a [RepositoryCredential] sealed
	// to each builder that may get the job, by the builder's name.
	Credentials map[string]Sealed `json:"credentials,omitempty"`
	Recipe      string            `json:"recipe,omitempty"` // wanted recipe version; a builder with another one refuses
	Deadline    time.Time         `json:"deadline,omitzero"`
	// Verify asks for every artifact to be made twice and compared.
	Verify bool `json:"verify,omitempty"`
	// Current is the digest, Tree and Recipe of the manifest the mesh holds; when a build
	// would give the same, the outcome is unchanged.
	Current *CurrentManifest `json:"current,omitempty"`
}

// RepositoryCredential is what reading a private repository takes. It travels sealed only.
type RepositoryCredential struct {
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"` // or a token; with PrivateKey its passphrase
	// PrivateKey is an OpenSSH private key (PEM), for ssh addresses.
	PrivateKey string `json:"privateKey,omitempty"`
	// HostKeys are the ssh server's public keys, as lines of authorized_keys. Any other is refused.
	HostKeys []string `json:"hostKeys,omitempty"`
}

// CurrentManifest identifies what the mesh already holds of a module.
type CurrentManifest struct {
	Digest string `json:"digest"`
	Tree   string `json:"tree"`
	Recipe string `json:"recipe"`
}

// Outcome of a build.
type Outcome string

// The outcomes.
const (
	OutcomeBuilt     Outcome = "built"
	OutcomeUnchanged Outcome = "unchanged"
	OutcomeFailed    Outcome = "failed"
	OutcomeCancelled Outcome = "cancelled"
	OutcomeRefused   Outcome = "refused"
)

// Phase names a part of a build. Phases is their order.
type Phase string

// The phases of a build.
const (
	PhaseClone    Phase = "clone"
	PhaseRead     Phase = "read"
	PhasePlan     Phase = "plan"
	PhaseBuild    Phase = "build"
	PhaseVerify   Phase = "verify"
	PhasePublish  Phase = "publish"
	PhaseAnnounce Phase = "announce"
)

// Phases lists every phase in the order a build passes through them.
var Phases = []Phase{PhaseClone, PhaseRead, PhasePlan, PhaseBuild, PhaseVerify, PhasePublish, PhaseAnnounce}

// Result is the one recorded answer to a [Job].
type Result struct {
	Schema     int         `json:"schema"`
	ID         string      `json:"id"`
	Outcome    Outcome     `json:"outcome"`
	Repository string      `json:"repository"`
	Path       string      `json:"path"`
	Ref        string      `json:"ref,omitempty"`
	Module     string      `json:"module,omitempty"`
	Commit     string      `json:"commit,omitempty"`
	Tree       string      `json:"tree,omitempty"`
	Digest     string      `json:"digest,omitempty"`   // of the manifest
	Manifest   *Manifest   `json:"manifest,omitempty"` // none unless built or unchanged
	Phases     []PhaseTime `json:"phases,omitempty"`
	// Provenance is the digest of the signed statement attached to the manifest.
	Provenance string `json:"provenance,omitempty"`
	// Reproducible is what building twice showed, by artifact; nil when it was not asked for.
	Reproducible map[string]Reproduction `json:"reproducible,omitempty"`
	Log          string                  `json:"log,omitempty"` // tail, at most 64 KiB
	Error        *BuildError             `json:"error,omitempty"`
	Builder      string                  `json:"builder"`
	Started      time.Time               `json:"started"`
	Ended        time.Time               `json:"ended"`
}

// Reproduction says whether an artifact made twice was the same both times, and if not,
// where the first difference lies: layer, file, and what differs.
type Reproduction struct {
	Same       bool   `json:"same"`
	Difference string `json:"difference,omitempty"`
}

// PhaseTime is one timed phase; Artifact is set in the build phase.
type PhaseTime struct {
	Phase    Phase  `json:"phase"`
	Artifact string `json:"artifact,omitempty"`
	Millis   int64  `json:"millis"`
}

// BuildError says why, and what to do. Reason is a constant such as "RepositoryUnreachable".
type BuildError struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Progress is one line of a build under way, sent with key build.progress.<id>.
type Progress struct {
	ID       string    `json:"id"`
	Phase    Phase     `json:"phase,omitempty"`
	Artifact string    `json:"artifact,omitempty"`
	Line     string    `json:"line,omitempty"`
	Builder  string    `json:"builder"`
	At       time.Time `json:"at"`
}

// Report is what a host says of itself, with key report.<node>.
type Report struct {
	Schema       int                        `json:"schema"`
	Node         string                     `json:"node"`
	Epoch        int64                      `json:"epoch"`
	Seen         int64                      `json:"seen"`    // last generation seen
	Applied      int64                      `json:"applied"` // last generation applied
	AppliedHash  string                     `json:"appliedHash,omitempty"`
	Sequence     int64                      `json:"sequence"`          // monotonic
	Outcome      string                     `json:"outcome,omitempty"` // of the last apply: applied, rolled-back, failed, refused
	Cause        string                     `json:"cause,omitempty"`   // its first cause
	Refused      int64                      `json:"refused,omitempty"` // generation refused since
	Resources    []ResourceStatus           `json:"resources"`
	Agent        Agent                      `json:"agent"`
	Capabilities []string                   `json:"capabilities"`
	Inventory    map[string]json.RawMessage `json:"inventory,omitempty"`
}

// ResourceStatus is one resource as the host sees it. Phase is one of applied, running,
// starting, failing, failed, stopped, removed.
type ResourceStatus struct {
	ID       string    `json:"id"`
	Type     string    `json:"type"`
	Phase    string    `json:"phase"`
	Digest   string    `json:"digest,omitempty"` // observed digest or image reference
	Restarts int       `json:"restarts,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	LastExit *int      `json:"lastExit,omitempty"`
	Message  string    `json:"message,omitempty"` // last lines on failure
	Drift    string    `json:"drift,omitempty"`
}

// Agent describes the host program and its machine. Memory and disk in bytes.
type Agent struct {
	Version    string    `json:"version"`
	Schema     int       `json:"schema"` // newest schema it knows
	Clock      time.Time `json:"clock"`
	Platform   string    `json:"platform"` // linux/amd64
	Address    string    `json:"address,omitempty"`
	DiskFree   int64     `json:"diskFree,omitempty"`
	MemoryFree int64     `json:"memoryFree,omitempty"`
}
