package api

import (
	"time"

	"github.com/mesh-control/mesh/schema"
)

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

// RepositorySuspendIn names a repository that is to be left alone, or looked at again.
type RepositorySuspendIn struct {
	URL       string `json:"url"`
	Suspended bool   `json:"suspended"`
}

// Repository as the catalogue last read it. State is "ok", "new", "suspended" or a reason such
// as Unreachable, AuthenticationFailed, RefNotFound, EmptyRepository, TooLarge; Remedy is what
// to do about one.
type Repository struct {
	URL         string    `json:"url"`
	Ref         string    `json:"ref"` // "" follows the remote's HEAD
	Watch       string    `json:"watch,omitempty"`
	State       string    `json:"state"`
	Message     string    `json:"message,omitempty"`
	Remedy      string    `json:"remedy,omitempty"`
	Commit      string    `json:"commit,omitempty"`
	Modules     int       `json:"modules"`
	LastChecked time.Time `json:"lastChecked,omitzero"`
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// Credential is what a private repository is read with; nil when it has none.
	Credential *RepositoryCredentialInfo `json:"credential,omitempty"`
}

// Kinds of credential.
const (
	CredentialToken  = "token"
	CredentialSSHKey = "ssh-key"
)

// RepositoryCredentialIn gives what a private repository is read with: a token for http, a
// private key with pinned host keys for ssh. It travels once, over TLS, and is sealed before
// it is stored.
type RepositoryCredentialIn struct {
	URL        string                      `json:"url"`
	Credential schema.RepositoryCredential `json:"credential"`
}

// RepositoryCredentialOut says what kind was given; nothing secret.
type RepositoryCredentialOut struct {
	URL  string `json:"url"`
	Kind string `json:"kind"`
}

// RepositoryCredentialInfo describes a credential, never its value. Builders are those that
// can open it.
type RepositoryCredentialInfo struct {
	Kind     string    `json:"kind"`
	Given    time.Time `json:"given"`
	Builders []string  `json:"builders,omitempty"`
}

// RepositoryListOut lists repositories by URL.
type RepositoryListOut struct {
	Repositories []Repository `json:"repositories"`
}

// The states of the catalogue.
const (
	CatalogueOK     = "ok"
	CatalogueSilent = "silent" // it has looked at repositories, and has not for long
	CatalogueAbsent = "absent" // it never has
)

// Catalogue says whether anybody looks at the repositories. Unless State is ok, what is behind
// is known only as of Spoke.
type Catalogue struct {
	State   string    `json:"state"`
	Message string    `json:"message,omitempty"`
	Spoke   time.Time `json:"spoke,omitzero"`
	Poll    int       `json:"poll,omitempty"` // seconds between two looks
}
