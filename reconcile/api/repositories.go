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

// Repository as the catalogue last read it. State is "ok", "new" or a reason such as
// Unreachable, AuthenticationFailed, RefNotFound, EmptyRepository, TooLarge.
type Repository struct {
	URL         string    `json:"url"`
	Ref         string    `json:"ref"` // "" follows the remote's HEAD
	Watch       string    `json:"watch,omitempty"`
	State       string    `json:"state"`
	Message     string    `json:"message,omitempty"`
	Commit      string    `json:"commit,omitempty"`
	Modules     int       `json:"modules"`
	LastChecked time.Time `json:"lastChecked,omitzero"`
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
}

// RepositoryListOut lists repositories by URL.
type RepositoryListOut struct {
	Repositories []Repository `json:"repositories"`
}
