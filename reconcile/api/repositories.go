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
	// Hook is its webhook; nil when it has none.
	Hook *RepositoryHookInfo `json:"hook,omitempty"`
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

// RepositoryHookIn makes a repository's webhook. Secret is what its notices are proved by: 16 to
// 256 printable characters, known to the caller and to the forge alone. It travels once, over
// TLS, and is sealed before it is stored. Unless Rotate is set, a hook that is there stays.
type RepositoryHookIn struct {
	URL    string `json:"url"`
	Secret string `json:"secret"`
	Rotate bool   `json:"rotate,omitempty"`
}

// RepositoryHookOut says where a forge sends its notices: each catalogue's URL, or only its
// path where none says under which URL it is reached. Empty while no catalogue takes any.
type RepositoryHookOut struct {
	URL       string   `json:"url"`
	Addresses []string `json:"addresses"`
}

// RepositoryHookInfo describes a webhook, never its secret.
type RepositoryHookInfo struct {
	Given   time.Time     `json:"given"`
	Notices []NoticeCount `json:"notices,omitempty"`
}

// NoticeCount counts the notices of forges by what became of them. Subject is what the sender of
// an unmatched one calls its repository; "" elsewhere. Outcome is accepted, ignored (proved, and
// no push), bad-signature, sealed-away (no running catalogue can open the secret), unsigned,
// unmatched, malformed, too-large, too-slow or failed; Forge is github, gitlab, gitea or generic.
type NoticeCount struct {
	Subject string    `json:"subject,omitempty"`
	Outcome string    `json:"outcome"`
	Forge   string    `json:"forge"`
	Count   int64     `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// RepositoryListOut lists repositories by URL. Notices are those that were of none of them, the
// latest first.
type RepositoryListOut struct {
	Repositories []Repository  `json:"repositories"`
	Notices      []NoticeCount `json:"notices,omitempty"`
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
