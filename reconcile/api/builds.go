package api

import (
	"time"

	"github.com/mesh-control/mesh/schema"
)

// BuildRequestIn asks for builds: either Behind, or Repository with Path and Ref, or
// Modules by name. Retry includes modules whose last build of this very input failed.
type BuildRequestIn struct {
	Behind     bool     `json:"behind,omitempty"`
	Retry      bool     `json:"retry,omitempty"`
	Modules    []string `json:"modules,omitempty"`
	Repository string   `json:"repository,omitempty"`
	Path       string   `json:"path,omitempty"`
	Ref        string   `json:"ref,omitempty"`
	Verify     bool     `json:"verify,omitempty"` // make every artifact twice and compare
}

// BuildRequestOut names the builds requested. Consumers is the number of builders taking
// work at this moment; 0 means nobody is.
type BuildRequestOut struct {
	Builds    []Build `json:"builds"`
	Consumers int     `json:"consumers"`
}

// Build is one request and, when it has ended, its one result. State is queued, running,
// cancelling or an outcome.
type Build struct {
	ID         string             `json:"id"`
	Repository string             `json:"repository"`
	Path       string             `json:"path"`
	Ref        string             `json:"ref,omitempty"`
	Module     string             `json:"module,omitempty"`
	State      string             `json:"state"`
	Digest     string             `json:"digest,omitempty"`
	Commit     string             `json:"commit,omitempty"`
	Noticed    string             `json:"noticed,omitempty"` // the source's commit when it was asked for, by the catalogue
	Moved      bool               `json:"moved,omitempty"`   // the module's files were others by the time it was built
	Error      *schema.BuildError `json:"error,omitempty"`
	Phases     []schema.PhaseTime `json:"phases,omitempty"`
	Builder    string             `json:"builder,omitempty"`
	Requested  time.Time          `json:"requested"`
	Started    time.Time          `json:"started,omitzero"`
	Ended      time.Time          `json:"ended,omitzero"`
	// Joined says of a build just asked for that it was waiting already.
	Joined bool `json:"joined,omitempty"`
	// Reproducible is what making each artifact twice showed, where that was asked for.
	Reproducible map[string]schema.Reproduction `json:"reproducible,omitempty"`
	Provenance   string                         `json:"provenance,omitempty"` // digest of the signed statement
}

// BuildCancelIn names a build by id, or a unique prefix of one.
type BuildCancelIn struct {
	ID string `json:"id"`
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
