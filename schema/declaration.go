package schema

import "encoding/json"

// Declaration is the whole desired state of one node. Hash is over the canonical bytes
// with epoch, generation, hash and signature left out; Signature is ed25519 over the
// canonical bytes with only the signature left out.
type Declaration struct {
	Schema     int               `json:"schema"`
	Node       string            `json:"node"`
	Epoch      int64             `json:"epoch"`
	Generation int64             `json:"generation"`
	Hash       string            `json:"hash,omitempty"`
	Modules    map[string]string `json:"modules"`   // module name to manifest digest
	Resources  []Resource        `json:"resources"` // ordered by dependency; ids "<module>/<id>"
	Host       HostSection       `json:"host"`
	Devices    DeviceSection     `json:"devices"`
	Instances  []json.RawMessage `json:"instances"`
	Site       SiteSection       `json:"site"`
	Daemon     json.RawMessage   `json:"daemon,omitempty"`
	Signature  []byte            `json:"signature,omitempty"`
}

// HostSection is merged key by key over all extensions.
type HostSection struct {
	Config    map[string]json.RawMessage `json:"config"`
	Telemetry map[string]json.RawMessage `json:"telemetry"`
	Access    map[string]json.RawMessage `json:"access"`
}

// ConfigArtifactStore is the key of host.config whose value is an [ArtifactStore].
const ConfigArtifactStore = "artifact-store"

// ArtifactStore tells a host where registry.mesh is.
type ArtifactStore struct {
	URL         string  `json:"url"` // https://host:port
	CA          string  `json:"ca"`  // PEM
	Fingerprint string  `json:"fingerprint,omitempty"`
	Token       *Sealed `json:"token,omitempty"` // bearer token, pull only
}

// DeviceSection holds assignments merged by allocationId.
type DeviceSection struct {
	Assignments []json.RawMessage `json:"assignments"`
}

// SiteSection is decided field by field.
type SiteSection struct {
	CacheImages []string `json:"cacheImages"`
}

// Credential is the content of every credential file, absent fields absent.
type Credential struct {
	URL         string `json:"url,omitempty"`
	Host        string `json:"host,omitempty"`
	Port        int    `json:"port,omitempty"`
	User        string `json:"user,omitempty"`
	Password    string `json:"password,omitempty"`
	Database    string `json:"database,omitempty"`
	CA          string `json:"ca,omitempty"`          // PEM
	Fingerprint string `json:"fingerprint,omitempty"` // sha256:<hex> of the server's public key
}

// Grant is one file of a provider's grants directory: what a consumer asks of it. The
// file's name is "<consumer>.<node>.json".
type Grant struct {
	Schema    int               `json:"schema"`
	Consumer  string            `json:"consumer"` // module
	Node      string            `json:"node"`     // the consumer's
	Provision string            `json:"provision"`
	User      string            `json:"user"`
	Password  string            `json:"password"`
	Database  string            `json:"database,omitempty"`
	Wishes    map[string]string `json:"wishes,omitempty"`
}
