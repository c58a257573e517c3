package catalogue

import "fmt"

// The states of a source, and of a module as [State] sees it.
const (
	StateOK       = "ok"
	StateInvalid  = "invalid"
	StateConflict = "conflict"
	StateRemoved  = "removed"
	StateBehind   = "behind"
	StateFailed   = "failed"
	// StateSuspended is a module that is left alone because somebody said so.
	StateSuspended = "suspended"
)

// The codes of a [Reason].
const (
	NeverBuilt      = "NeverBuilt"
	SourceChanged   = "SourceChanged"
	RecipeChanged   = "RecipeChanged"
	UpstreamMoved   = "UpstreamMoved"
	LastBuildFailed = "LastBuildFailed"
	Suspended       = "Suspended"
)

// Reason is why a module is behind: a stable code and the words a person reads.
type Reason struct {
	Code    string
	Message string
}

// SourceFacts are what the catalogue recorded of a module's source.
type SourceFacts struct {
	State  string
	Commit string // at which Tree was first seen
	Tree   string
	// Suspended says who left the module alone; "" is nobody.
	Suspended string
}

// ManifestFacts are what the mesh holds of a module: what its manifest was built from.
type ManifestFacts struct {
	Digest string
	Commit string
	Tree   string
	Recipe string
	Moved  []Moved
}

// Moved is an upstream tag that means another digest now than when a manifest was built.
type Moved struct{ Reference, Was, Now string }

// BuildFacts are the last build that ended for a module. Tree and Recipe are its input's; a
// build that failed before it knew its tree has none, and Commit then stands for it.
type BuildFacts struct {
	ID      string
	Failed  bool
	Commit  string
	Tree    string
	Recipe  string
	Message string
}

// Behind says why a module's manifest does not answer its source: the reasons in the order a
// person wants them, none when it is current. recipe is the wanted one.
//
// The tree of the module's path decides, not the commit: a commit elsewhere in the repository
// leaves it current. A source that is invalid, in conflict or removed makes nothing behind:
// those are states of their own, and what runs keeps running. [LastBuildFailed] is added when
// the last build was of this very tree and recipe, [Suspended] when the module or its
// repository is; see [Buildable].
func Behind(source SourceFacts, manifest *ManifestFacts, lastBuild *BuildFacts, recipe string) []Reason {
	if source.State != StateOK {
		return nil
	}
	var reasons []Reason
	switch {
	case manifest == nil:
		reasons = append(reasons, Reason{NeverBuilt, "never built; its source stands at commit " + short(source.Commit)})
	case manifest.Tree != source.Tree:
		reasons = append(reasons, Reason{SourceChanged, fmt.Sprintf("source changed from commit %s to %s", short(manifest.Commit), short(source.Commit))})
	}
	if manifest != nil && manifest.Recipe != recipe {
		reasons = append(reasons, Reason{RecipeChanged, fmt.Sprintf("built with recipe %s, now %s", short(manifest.Recipe), short(recipe))})
	}
	if manifest != nil {
		for _, up := range manifest.Moved {
			reasons = append(reasons, Reason{UpstreamMoved, fmt.Sprintf("%s is %s now, and was %s when it was mirrored", up.Reference, short(up.Now), short(up.Was))})
		}
	}
	if len(reasons) > 0 && failedOn(lastBuild, source, recipe) {
		message := fmt.Sprintf("build %s of this very source failed", lastBuild.ID)
		if lastBuild.Message != "" {
			message += ": " + lastBuild.Message
		}
		reasons = append(reasons, Reason{LastBuildFailed, message})
	}
	if len(reasons) > 0 && source.Suspended != "" {
		reasons = append(reasons, Reason{Suspended, source.Suspended})
	}
	return reasons
}

func failedOn(build *BuildFacts, source SourceFacts, recipe string) bool {
	if build == nil || !build.Failed || build.Recipe != recipe {
		return false
	}
	if build.Tree != "" {
		return build.Tree == source.Tree
	}
	return build.Commit != "" && build.Commit == source.Commit
}

// State is a module's one state: the source's own when that is not ok, else suspended, else
// failed, behind or ok as the reasons of [Behind] have it.
func State(source SourceFacts, reasons []Reason) string {
	switch {
	case source.State != StateOK:
		return source.State
	case source.Suspended != "":
		return StateSuspended
	case len(reasons) == 0:
		return StateOK
	case hasCode(reasons, LastBuildFailed):
		return StateFailed
	}
	return StateBehind
}

// Buildable says whether building what is behind takes this module: it is behind and not
// suspended, and its last build did not fail on this very input, unless retry asks for that.
func Buildable(reasons []Reason, retry bool) bool {
	return len(reasons) > 0 && !hasCode(reasons, Suspended) && (retry || !hasCode(reasons, LastBuildFailed))
}

func hasCode(reasons []Reason, code string) bool {
	for _, r := range reasons {
		if r.Code == code {
			return true
		}
	}
	return false
}

// short is a hash as people read it.
func short(hash string) string {
	const algorithm = "sha256:"
	if len(hash) > len(algorithm)+12 && hash[:len(algorithm)] == algorithm {
		return hash[:len(algorithm)+12]
	}
	if len(hash) == 40 {
		return hash[:12]
	}
	return hash
}
