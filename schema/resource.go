package schema

// The types of resource.
const (
	TypeDirectory = "directory"
	TypeFile      = "file"
	TypeArchive   = "archive"
	TypeContainer = "container"
	TypeService   = "service"
)

// Resource is one typed entry of a module.json, a manifest or a declaration. Which fields
// a type has is in the comment of each; the parser refuses the others by name.
//
// A reference to something built is written three ways, one per document: in module.json
// Artifact; in manifest and declaration Source and Digest (archive) or Image (container).
type Resource struct {
	// ID is unique in its module; in a declaration it is "<module>/<id>".
	ID    string   `json:"id"`
	Type  string   `json:"type"`
	After []string `json:"after,omitempty"` // ids of the same document

	Artifact string `json:"artifact,omitempty"` // module.json only

	Path  string `json:"path,omitempty"`  // directory, file, archive
	Mode  string `json:"mode,omitempty"`  // directory, file: octal, "0644"
	Owner string `json:"owner,omitempty"` // directory, file: "user" or "user:group" or numeric

	Content *string `json:"content,omitempty"` // file
	Sealed  *Sealed `json:"sealed,omitempty"`  // file, declaration only

	Source string `json:"source,omitempty"` // archive: https://registry.mesh/v2/modules/<m>/blobs/<digest>
	Digest string `json:"digest,omitempty"` // archive: sha256:<hex> of the uncompressed tar
	Strip  int    `json:"strip,omitempty"`  // archive: leading path components dropped

	Image        string            `json:"image,omitempty"` // container: registry.mesh/<repository>@sha256:<hex>
	Command      []string          `json:"command,omitempty"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Env          map[string]string `json:"env,omitempty"`       // container, service
	EnvFiles     []string          `json:"env-files,omitempty"` // container
	Mounts       []Mount           `json:"mounts,omitempty"`
	Ports        []Port            `json:"ports,omitempty"`
	Networks     []string          `json:"networks,omitempty"` // "host", or names; default the engine's bridge
	Devices      []string          `json:"devices,omitempty"`
	Limits       *Limits           `json:"limits,omitempty"`
	User         string            `json:"user,omitempty"` // container, service
	Capabilities []string          `json:"capabilities,omitempty"`
	ReadOnly     bool              `json:"read-only,omitempty"`
	Restart      string            `json:"restart,omitempty"` // container, service: "always" (default), "on-failure", "no"
	StopSignal   string            `json:"stop-signal,omitempty"`
	StopTimeout  int               `json:"stop-timeout,omitempty"` // seconds
	Health       *Health           `json:"health,omitempty"`       // container, service
	Labels       map[string]string `json:"labels,omitempty"`

	Exec      string   `json:"exec,omitempty"` // service: absolute path of the program
	Args      []string `json:"args,omitempty"` // service
	Directory string   `json:"directory,omitempty"`
	RestartOn []string `json:"restart-on,omitempty"` // service: ids of resources whose change restarts it
}

// Mount puts a directory of the node (never a single file, except a socket) into a container.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read-only,omitempty"`
}

// Port publishes a container's port on the node. Address is the node's address to listen
// on, default all. Host 0 means the same number as Container.
type Port struct {
	Container int    `json:"container"`
	Host      int    `json:"host,omitempty"`
	Address   string `json:"address,omitempty"`
	Protocol  string `json:"protocol,omitempty"` // "tcp" (default) or "udp"
}

// Limits of a container. Memory in bytes, CPUs in cores, PIDs a count; 0 is none.
type Limits struct {
	Memory int64   `json:"memory,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
	PIDs   int64   `json:"pids,omitempty"`
}

// Health says how to see that a container or service works; exactly one of HTTP, TCP and
// Exec. Interval and Window are seconds.
type Health struct {
	HTTP     string   `json:"http,omitempty"`   // URL; 2xx is healthy, or what Status says
	Status   []int    `json:"status,omitempty"` // of HTTP: the answers that are healthy, such as 200 and 401
	TCP      string   `json:"tcp,omitempty"`    // host:port; accepting is healthy, of a container and keeping the connection
	Exec     []string `json:"exec,omitempty"`   // exit 0 is healthy
	Interval int      `json:"interval,omitempty"`
	Window   int      `json:"window,omitempty"` // how long it may take to become healthy
}

// Sealed is bytes only one node can open (HPKE, X25519, base mode). Info binds mesh, node,
// key fingerprint, module, secret and version, so that it cannot be moved to another field.
type Sealed struct {
	Recipient string `json:"recipient"` // fingerprint of the sealing key, sha256:<hex>
	Info      string `json:"info"`
	Data      []byte `json:"data"` // encapsulated key followed by ciphertext
}
