package schema

// MediaTypeManifest is the artifactType, and MediaTypeConfig the config's media type, of a
// published manifest. Its digest is the OCI manifest's.
const (
	MediaTypeManifest = "application/vnd.mesh.module.v1+json"
	MediaTypeConfig   = "application/vnd.mesh.manifest.v1+json"
	MediaTypeTar      = "application/vnd.oci.image.layer.v1.tar"
)

// RegistryName stands in every reference for the mesh's registry. It is a name, not an
// address: hosts and builders resolve it from what the mesh says of `artifact-store`.
const RegistryName = "registry.mesh"

// Manifest is the built manifest: the module.json with every artifact replaced by what it
// became. Derived, digest-pinned, free of times, hosts and builders.
type Manifest struct {
	Schema       int                  `json:"schema"` // Version
	Module       string               `json:"module"`
	Description  string               `json:"description,omitempty"`
	Provides     []Provision          `json:"provides,omitempty"`
	Requires     []Requirement        `json:"requires,omitempty"`
	Claims       []Claim              `json:"claims,omitempty"`
	Capabilities []string             `json:"capabilities,omitempty"`
	Settings     map[string]Setting   `json:"settings,omitempty"`
	Resources    []Resource           `json:"resources,omitempty"`
	Secrets      map[string]string    `json:"secrets,omitempty"`
	OwnSecrets   map[string]OwnSecret `json:"own-secrets,omitempty"`
	Source       Source               `json:"source"`
	Artifacts    map[string]Built     `json:"artifacts,omitempty"`
	Recipe       string               `json:"recipe"` // sha256:<hex> of what else decides the outcome
}

// Source is where a manifest came from.
type Source struct {
	Repository string `json:"repository"` // the URL the mesh watches, whatever was cloned from
	Path       string `json:"path"`       // "" is the root
	Ref        string `json:"ref"`        // full name, refs/heads/main
	Commit     string `json:"commit"`     // 40 hex
	Tree       string `json:"tree"`       // hash of the path's git tree, 40 hex
}

// Built is what an artifact became.
type Built struct {
	Kind      string   `json:"kind"`
	Digest    string   `json:"digest"` // sha256:<hex>; of the blob, or of the image's manifest or index
	Size      int64    `json:"size"`   // bytes of the blob, or of the image's manifest
	MediaType string   `json:"mediaType"`
	Platforms []string `json:"platforms,omitempty"`
	// Language of a bundle, and the version of the toolchain it was compiled with.
	Language  string `json:"language,omitempty"`
	Toolchain string `json:"toolchain,omitempty"`
	// Image is the digest of the image a bundle became, when a container uses it.
	Image    string         `json:"image,omitempty"`
	Upstream *BuiltUpstream `json:"upstream,omitempty"`
}

// BuiltUpstream records what was mirrored: the reference as written and the digest it had.
type BuiltUpstream struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
}
