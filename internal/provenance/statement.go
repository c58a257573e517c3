package provenance

import (
	"strings"
	"time"

	"github.com/mesh-control/mesh/schema"
)

// The types a statement bears, and those of what carries it.
const (
	StatementType = "https://in-toto.io/Statement/v1"
	PredicateType = "https://slsa.dev/provenance/v1"
	// BuildType says how the parameters are to be read.
	BuildType = "https://github.com/mesh-control/mesh/blob/main/docs/provenance.md#build-type-1"

	// MediaTypeStatement is the payload's type, and the artifact type of the referrer.
	MediaTypeStatement = "application/vnd.in-toto+json"
	MediaTypeEnvelope  = "application/vnd.dsse.envelope.v1+json"
	MediaTypeSBOM      = "application/vnd.cyclonedx+json"
	// AnnotationPredicate tells one kind of statement from another before it is read.
	AnnotationPredicate = "in-toto.io/predicate-type"
)

// BuilderID names a mesh's builder in a statement.
func BuilderID(name string) string { return "https://controller.mesh/builders/" + name }

// Statement is an in-toto Statement v1 about a build.
type Statement struct {
	Type          string     `json:"_type"`
	Subject       []Resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     Predicate  `json:"predicate"`
}

// Resource is an in-toto ResourceDescriptor. Digests are hex, by algorithm: sha256, or
// gitCommit for a commit.
type Resource struct {
	Name      string            `json:"name,omitempty"`
	URI       string            `json:"uri,omitempty"`
	Digest    map[string]string `json:"digest"`
	MediaType string            `json:"mediaType,omitempty"`
}

// Predicate is SLSA Provenance v1.
type Predicate struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
}

// BuildDefinition is what went into a build.
type BuildDefinition struct {
	BuildType            string             `json:"buildType"`
	ExternalParameters   ExternalParameters `json:"externalParameters"`
	InternalParameters   InternalParameters `json:"internalParameters"`
	ResolvedDependencies []Resource         `json:"resolvedDependencies"`
}

// ExternalParameters are what was asked for, resolved to a commit and a recipe.
type ExternalParameters struct {
	Repository string `json:"repository"`
	Ref        string `json:"ref"`
	Commit     string `json:"commit"`
	Path       string `json:"path"` // of the module in the repository; "" is the root
	Module     string `json:"module"`
	Recipe     string `json:"recipe"` // hash
}

// InternalParameters are the builder's own part.
type InternalParameters struct {
	Tree       string            `json:"tree"`                 // of the module's path
	Toolchains map[string]string `json:"toolchains,omitempty"` // versions by language
}

// RunDetails is who made the build and when.
type RunDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
	Metadata struct {
		InvocationID string    `json:"invocationId"` // of the build
		StartedOn    time.Time `json:"startedOn"`
		FinishedOn   time.Time `json:"finishedOn"`
	} `json:"metadata"`
	Byproducts []Resource `json:"byproducts,omitempty"` // lists of what bundles were made of
}

// sha256Digest gives "sha256:<hex>" in the form of a statement.
func sha256Digest(digest string) map[string]string {
	return map[string]string{"sha256": strings.TrimPrefix(digest, "sha256:")}
}

// Image is a [Resource] that is an image or another content of a registry.
func Image(reference, digest string) Resource {
	return Resource{URI: reference, Digest: sha256Digest(digest)}
}

// Commit is a [Resource] that is a commit of a repository; ref may be "".
func Commit(repository, ref, commit string) Resource {
	uri := "git+" + repository
	if ref != "" {
		uri += "@" + ref
	}
	return Resource{URI: uri, Digest: map[string]string{"gitCommit": commit}}
}

// SBOM is a [Resource] that is the list of what the bundle of a name was made of.
func SBOM(artifact, digest string) Resource {
	return Resource{Name: artifact, Digest: sha256Digest(digest), MediaType: MediaTypeSBOM}
}

// Build is what a statement is made of, and, on the other side, what a mesh recorded of the
// same build.
type Build struct {
	ID         string
	Builder    string
	Module     string
	Digest     string // of the manifest
	Artifacts  map[string]schema.Built
	Source     schema.Source
	Recipe     string
	Toolchains map[string]string
	Started    time.Time
	Finished   time.Time
	Used       []Resource // submodules, and images built with and on, beside what Artifacts name
	SBOMs      []Resource
}

// New makes a build's statement.
func New(b Build) Statement {
	s := Statement{Type: StatementType, PredicateType: PredicateType, Subject: subjects(b)}
	definition := &s.Predicate.BuildDefinition
	definition.BuildType = BuildType
	definition.ExternalParameters = ExternalParameters{
		Repository: b.Source.Repository, Ref: b.Source.Ref, Commit: b.Source.Commit, Path: b.Source.Path, Module: b.Module, Recipe: b.Recipe,
	}
	definition.InternalParameters = InternalParameters{Tree: b.Source.Tree, Toolchains: b.Toolchains}
	definition.ResolvedDependencies = dependencies(b)
	run := &s.Predicate.RunDetails
	run.Builder.ID = BuilderID(b.Builder)
	run.Metadata.InvocationID = b.ID
	run.Metadata.StartedOn, run.Metadata.FinishedOn = b.Started.UTC(), b.Finished.UTC()
	run.Byproducts = b.SBOMs
	return s
}
