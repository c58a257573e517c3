package registry

import (
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// guard stands before the registry's handler and lets a request through only if its token
// allows it. What it cannot place is refused: the handler behind it checks nothing.
type guard struct {
	public    ed25519.PublicKey
	next      http.Handler
	store     *heldStore
	collector *collector
	log       *slog.Logger
}

var (
	repositoryName = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	endpoint       = regexp.MustCompile(`^/v2/(.+)/(?:manifests/[^/]+|blobs/sha256:[0-9a-f]{64}|blobs/uploads/[^/]*|tags/list)$`)
)

// reserved components would let a path be read in two ways.
var reserved = map[string]bool{"manifests": true, "blobs": true, "uploads": true, "tags": true}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
	claims, err := g.authenticate(r)
	if err != nil {
		g.log.Debug("request refused", "method", r.Method, "path", r.URL.Path, "error", err)
		w.Header().Set("WWW-Authenticate", `Bearer realm="https://`+r.Host+`/v2/",service="mesh"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "a bearer token of this mesh is required")
		return
	}
	if r.URL.Path == "/v2/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		g.next.ServeHTTP(w, r)
		return
	}
	if action := wholeAction(r); action != "" {
		if !claims.Allows(WholeRegistry, action) {
			g.deny(w, r, claims, "this registry")
			return
		}
		if action == ActionCollect {
			g.collector.ServeHTTP(w, r)
			return
		}
		g.next.ServeHTTP(w, r)
		return
	}
	repository, ok := repositoryOf(r)
	if !ok {
		refuse(w, http.StatusNotFound, "NAME_INVALID", "not a path of this registry")
		return
	}
	if !g.allowed(claims, repository, r) {
		g.deny(w, r, claims, repository)
		return
	}
	if claims.Allows(repository, ActionPush) {
		if err := g.store.serve(w, r, g.next); err != nil {
			g.log.Warn("request not served", "method", r.Method, "path", r.URL.Path, "error", err)
		}
		return
	}
	g.next.ServeHTTP(w, r)
}

func (g *guard) deny(w http.ResponseWriter, r *http.Request, claims Claims, place string) {
	g.log.Warn("request denied", "subject", claims.Subject, "method", r.Method, "path", r.URL.Path)
	refuse(w, http.StatusForbidden, "DENIED", "the token of "+claims.Subject+" does not allow "+r.Method+" in "+place)
}

// wholeAction is what a request does with the registry as a whole; "" of one about a repository.
func wholeAction(r *http.Request) string {
	switch {
	case r.URL.RawPath != "":
	case r.URL.Path == "/v2/_catalog" && r.Method == http.MethodGet:
		return ActionList
	case r.URL.Path == collectPath && r.Method == http.MethodPost:
		return ActionCollect
	}
	return ""
}

func (g *guard) authenticate(r *http.Request) (Claims, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || len(r.Header.Values("Authorization")) != 1 {
		return Claims{}, ErrToken
	}
	return VerifyToken(g.public, token, time.Now())
}

// repositoryOf gives the repository a request is about, read exactly as the handler behind
// reads it: escaped paths and ambiguous names are refused rather than interpreted.
func repositoryOf(r *http.Request) (string, bool) {
	match := endpoint.FindStringSubmatch(r.URL.Path)
	if match == nil || r.URL.RawPath != "" || len(match[1]) > 255 || !repositoryName.MatchString(match[1]) {
		return "", false
	}
	for component := range strings.SplitSeq(match[1], "/") {
		if reserved[component] {
			return "", false
		}
	}
	return match[1], true
}

func (g *guard) allowed(claims Claims, repository string, r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return claims.Allows(repository, ActionPull)
	case http.MethodDelete:
		if strings.Contains(r.URL.Path, "/blobs/uploads/") { // giving up an upload of one's own
			return claims.Allows(repository, ActionPush)
		}
		return claims.Allows(repository, ActionDelete)
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		// The handler reads "from" out of a form body too, which would go round the check below.
		if kind := r.Header.Get("Content-Type"); strings.Contains(strings.ToLower(kind), "form") {
			return false
		}
		for _, from := range r.URL.Query()["from"] {
			if !claims.Allows(from, ActionPull) {
				return false
			}
		}
		return claims.Allows(repository, ActionPush)
	}
	return false
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	type entry struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string][]entry{"errors": {{code, message}}})
}
