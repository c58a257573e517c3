package api

import "time"

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
