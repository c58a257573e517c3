package notice

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/internal/giturl"
)

// The forges.
const (
	GitHub  = "github"
	GitLab  = "gitlab"
	Gitea   = "gitea" // and Forgejo
	Generic = "generic"
)

// Notice is what was sent, as far as it matters here.
type Notice struct {
	Forge string
	// Push: something was pushed, so a look is worth while. Other events are not acted upon.
	Push bool
	// Repositories are all addresses that the notice gives the repository, each one readable.
	Repositories []giturl.URL

	proofs proofs
}

// Errors of [Read]. Neither tells anything that the sender did not say.
var (
	ErrUnsigned  = errors.New("it carries no signature; give the forge the hook's secret")
	ErrMalformed = errors.New("it names no repository")
)

// maxAddresses bounds what one notice may ask to be compared.
const maxAddresses = 16

// ForgeOf is the forge that a request's headers speak of. Gitea sends GitHub's as well.
func ForgeOf(header http.Header) string {
	switch {
	case header.Get("X-Gitea-Event") != "" || header.Get("X-Forgejo-Event") != "":
		return Gitea
	case header.Get("X-Gitlab-Event") != "":
		return GitLab
	case header.Get("X-GitHub-Event") != "":
		return GitHub
	}
	return Generic
}

// Read takes a request apart. Body is all of it, as it came over the wire: JSON, or a form whose
// field "payload" is JSON.
func Read(header http.Header, body []byte) (*Notice, error) {
	n := &Notice{Forge: ForgeOf(header)}
	document := body
	if kind, _, _ := mime.ParseMediaType(header.Get("Content-Type")); kind == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, ErrMalformed
		}
		document = []byte(form.Get("payload"))
	}
	if n.proofs = readProofs(header, body, document); !n.proofs.any() {
		return nil, ErrUnsigned
	}
	var p payload
	if err := json.Unmarshal(document, &p); err != nil {
		return nil, fmt.Errorf("%w: %s is not JSON", ErrMalformed, header.Get("Content-Type"))
	}
	n.Push = p.push(n.Forge, header)
	n.Repositories = p.addresses()
	if len(n.Repositories) == 0 {
		return nil, ErrMalformed
	}
	return n, nil
}

// payload is what of the forges' documents is read. GitLab says project where the others say
// repository, and both in a push.
type payload struct {
	Repository repository `json:"repository"`
	Project    repository `json:"project"`
	ObjectKind string     `json:"object_kind"` // GitLab
	EventName  string     `json:"event_name"`  // GitLab's system hooks
}

// push says whether the event is one after which a ref may stand elsewhere.
func (p payload) push(forge string, header http.Header) bool {
	pushes := func(kinds ...string) bool {
		return slices.ContainsFunc(kinds, func(kind string) bool { return kind == "push" || kind == "tag_push" })
	}
	switch forge {
	case GitLab:
		return pushes(p.ObjectKind, p.EventName)
	case Gitea:
		return pushes(header.Get("X-Gitea-Event"), header.Get("X-Forgejo-Event"))
	case GitHub:
		return pushes(header.Get("X-GitHub-Event"))
	}
	return true
}

// repository is an object with addresses in it, or an address.
type repository struct{ addresses []string }

// UnmarshalJSON reads either.
func (r *repository) UnmarshalJSON(data []byte) error {
	var address string
	if json.Unmarshal(data, &address) == nil {
		r.addresses = []string{address}
		return nil
	}
	var object struct {
		CloneURL   string `json:"clone_url"` // GitHub, Gitea
		SSHURL     string `json:"ssh_url"`
		HTMLURL    string `json:"html_url"`
		GitHTTPURL string `json:"git_http_url"` // GitLab
		GitSSHURL  string `json:"git_ssh_url"`
		WebURL     string `json:"web_url"`
		URL        string `json:"url"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	r.addresses = []string{object.CloneURL, object.SSHURL, object.GitHTTPURL, object.GitSSHURL, object.HTMLURL, object.WebURL, object.URL}
	return nil
}

// addresses are those that the mesh could watch, without repetition.
func (p payload) addresses() []giturl.URL {
	var found []giturl.URL
	for _, address := range slices.Concat(p.Repository.addresses, p.Project.addresses) {
		u, err := giturl.Parse(strings.TrimSpace(address))
		if err == nil && !slices.Contains(found, u) && len(found) < maxAddresses {
			found = append(found, u)
		}
	}
	return found
}
