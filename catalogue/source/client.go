package source

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/git"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/prometheus/client_golang/prometheus"
)

// Config of a [Client]; zero fields take the defaults named.
type Config struct {
	// Dir holds packs too large for memory. It is the client's own: [New] empties it of what
	// a process that died left behind. Default: a directory below the system's temporary one.
	Dir string
	// MemoryBytes is the largest pack parsed in memory. Default 32 MiB.
	MemoryBytes int64
	// MaxBytes is the largest pack accepted at all. Default 4 GiB.
	MaxBytes int64
	// Registry takes the counters; nil keeps them unregistered.
	Registry prometheus.Registerer
}

// Head is where a ref stands: its full name and the commit, 40 hex digits.
type Head struct {
	Ref    string
	Commit string
}

// Client asks and fetches. It holds no state of any repository and may be shared.
type Client struct {
	config  Config
	http    *http.Client
	metrics *metrics
}

const packDirectory = "fetch-"

// New makes a client and removes what an earlier process left in its directory.
func New(config Config) (*Client, error) {
	if config.Dir == "" {
		config.Dir = filepath.Join(os.TempDir(), "mesh-catalogue")
	}
	if config.MemoryBytes == 0 {
		config.MemoryBytes = 32 << 20
	}
	if config.MaxBytes == 0 {
		config.MaxBytes = 4 << 30
	}
	if left, err := filepath.Glob(filepath.Join(config.Dir, packDirectory+"*")); err == nil {
		for _, dir := range left {
			if err := os.RemoveAll(dir); err != nil {
				return nil, err
			}
		}
	}
	return &Client{
		config:  config,
		metrics: newMetrics(config.Registry),
		http: &http.Client{Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   15 * time.Second,
			ResponseHeaderTimeout: 2 * time.Minute,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   2,
			ForceAttemptHTTP2:     true,
		}},
	}, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// LsRemote asks the repository at address where ref stands. Ref "" is the remote's HEAD; a
// name without "refs/" is a branch or, failing that, a tag.
func (c *Client) LsRemote(ctx context.Context, address, ref string, auth *Auth) (Head, error) {
	head, err := within(ctx, address, func() (Head, error) { return c.lsRemote(ctx, address, ref, auth) }, func(Head) {})
	err = classify(ctx, address, auth, err)
	c.metrics.lsRemote.WithLabelValues(outcome(err)).Inc()
	return head, err
}

func (c *Client) lsRemote(ctx context.Context, address, ref string, auth *Auth) (Head, error) {
	if dir, ok := LocalPath(address); ok {
		repository, err := openLocal(dir)
		if err != nil {
			return Head{}, err
		}
		defer repository.Close()
		return localHead(repository, address, ref)
	}
	session, err := c.open(address, auth)
	if err != nil {
		return Head{}, err
	}
	defer session.Close()
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return Head{}, err
	}
	return resolve(advertised, address, ref)
}

func (c *Client) open(address string, auth *Auth) (transport.UploadPackSession, error) {
	if err := CheckAddress(address); err != nil {
		return nil, err
	}
	endpoint, err := transport.NewEndpoint(address)
	if err != nil {
		return nil, failure(Invalid, "%s is not a repository's address", Redact(address))
	}
	var speaker transport.Transport
	switch endpoint.Protocol {
	case "http", "https":
		speaker = githttp.NewClient(c.http)
	case "ssh":
		if auth != nil && auth.User == "" && endpoint.User != "" {
			named := *auth
			named.User = endpoint.User
			auth = &named
		}
		speaker = gitssh.NewClient(nil)
	case "git":
		speaker = git.DefaultClient
	default:
		return nil, failure(Invalid, "%s: protocol %q is not one the mesh speaks", Redact(address), endpoint.Protocol)
	}
	method, err := auth.method(endpoint.Protocol)
	if err != nil {
		return nil, err
	}
	return speaker.NewUploadPackSession(endpoint, method)
}

// candidates are the full names ref may stand for, in the order they are tried.
func candidates(ref string) []string {
	if strings.HasPrefix(ref, "refs/") {
		return []string{ref}
	}
	return []string{"refs/heads/" + ref, "refs/tags/" + ref}
}

func resolve(advertised *packp.AdvRefs, address, ref string) (Head, error) {
	if len(advertised.References) == 0 && advertised.Head == nil {
		return Head{}, transport.ErrEmptyRemoteRepository
	}
	if ref == "" {
		return resolveHead(advertised, address)
	}
	for _, name := range candidates(ref) {
		if commit, ok := advertised.Peeled[name]; ok {
			return Head{Ref: name, Commit: commit.String()}, nil
		}
		if commit, ok := advertised.References[name]; ok {
			return Head{Ref: name, Commit: commit.String()}, nil
		}
	}
	return Head{}, failure(RefNotFound, "%s has no branch or tag %q", Redact(address), ref)
}

// resolveHead follows the remote's HEAD to the branch it names. A server that does not say
// the name has it found by the commit, main and master first.
func resolveHead(advertised *packp.AdvRefs, address string) (Head, error) {
	for _, symref := range advertised.Capabilities.Get(capability.SymRef) {
		name, target, _ := strings.Cut(symref, ":")
		if commit, ok := advertised.References[target]; name == "HEAD" && ok {
			return Head{Ref: target, Commit: commit.String()}, nil
		}
	}
	if advertised.Head == nil {
		return Head{}, failure(RefNotFound, "%s: its HEAD names a branch that does not exist; name the branch to follow", Redact(address))
	}
	named := ""
	for name, commit := range advertised.References {
		if commit != *advertised.Head || !strings.HasPrefix(name, "refs/heads/") {
			continue
		}
		if named == "" || name == "refs/heads/main" || (name < named && named != "refs/heads/main") {
			named = name
		}
	}
	if named == "" {
		named = plumbing.HEAD.String()
	}
	return Head{Ref: named, Commit: advertised.Head.String()}, nil
}

// within waits for do no longer than ctx lasts. HTTP and local reads end with ctx by
// themselves; go-git's ssh and git transports connect without it, and a server that accepts
// and then says nothing would hold its caller. discard gets what comes after that.
func within[T any](ctx context.Context, address string, do func() (T, error), discard func(T)) (T, error) {
	if strings.HasPrefix(address, "http") {
		return do()
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				discard(r.value)
			}
		}()
		var none T
		return none, ctx.Err()
	}
}

var errNoCommit = errors.New("the ref does not name a commit")
