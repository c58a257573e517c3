package git

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"github.com/mesh-control/mesh/internal/giturl"
)

// Config of a [Client]; zero fields take the defaults named.
type Config struct {
	// Dir holds packs as they come, and those too large for memory. It is the client's own: [New] empties it of what
	// a process that died left behind.
	Dir string
	// Keep leaves what is there: the directory was made for this client, or has others.
	Keep bool
	// MemoryBytes is how much of unpacked objects is held in memory by one fetch; a larger
	// commit stays on disk. Default 64 MiB.
	MemoryBytes int64
	// MaxBytes is the largest pack accepted at all. Default 4 GiB.
	MaxBytes int64
	// Received is told of the bytes of packs as they come; nil is nobody.
	Received func(bytes int)
}

// Client asks and fetches. It holds no state of any repository and may be shared.
type Client struct {
	config Config
	http   *http.Client
}

const packDirectory = "fetch-"

// New makes a client and removes what an earlier process left in its directory.
func New(config Config) (*Client, error) {
	if config.MemoryBytes == 0 {
		config.MemoryBytes = 64 << 20
	}
	if config.MaxBytes == 0 {
		config.MaxBytes = 4 << 30
	}
	if config.Received == nil {
		config.Received = func(int) {}
	}
	if !config.Keep {
		if err := sweep(config.Dir); err != nil {
			return nil, fmt.Errorf("sweep fetch directory: %w", err)
		}
	}
	return &Client{
		config: config,
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

// sweep removes packs that a process left which died.
func sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, packDirectory+"*"))
	if err != nil {
		return err
	}
	for _, pack := range left {
		if err := os.RemoveAll(pack); err != nil {
			return err
		}
	}
	return nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Head is where a ref stands: its full name and the commit, 40 hex digits. A commit that was
// asked for by its digits and is the tip of nothing has no name until it is fetched.
type Head struct {
	Ref    string
	Commit string
}

// LsRemote asks the repository at address where ref stands. Ref "" is the remote's HEAD; a
// name without "refs/" is a branch or, failing that, a tag; 40 hex digits are a commit.
func (c *Client) LsRemote(ctx context.Context, address, ref string, credential *Credential) (Head, error) {
	head, err := c.lsRemote(ctx, address, ref, credential)
	return head, Classify(ctx, address, credential, err)
}

func (c *Client) lsRemote(ctx context.Context, address, ref string, credential *Credential) (Head, error) {
	u, err := parse(address)
	if err != nil {
		return Head{}, err
	}
	if dir, ok := u.Local(); ok {
		repository, err := openLocal(dir)
		if err != nil {
			return Head{}, err
		}
		defer repository.Close()
		found, err := localRef(repository, address, ref)
		return found.Head, err
	}
	session, err := c.open(ctx, u, credential)
	if err != nil {
		return Head{}, err
	}
	defer session.Close()
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return Head{}, err
	}
	found, err := resolve(advertised, address, ref)
	return found.Head, err
}

func parse(address string) (giturl.URL, error) {
	u, err := giturl.Parse(address)
	var refused *giturl.Error
	if errors.As(err, &refused) {
		return u, &Error{Reason: Invalid, Message: printable(refused.Address + ": " + refused.Problem), Remedy: refused.Remedy}
	}
	return u, err
}

// session is one conversation with a server: it tells its refs, then at most one pack.
type session interface {
	AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error)
	UploadPack(ctx context.Context, request *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	Close() error
}

func (c *Client) open(ctx context.Context, u giturl.URL, credential *Credential) (session, error) {
	if u.Scheme == giturl.SSH {
		return dialSSH(ctx, u, credential)
	}
	endpoint, err := transport.NewEndpoint(u.String())
	if err != nil {
		return nil, Failure(Invalid, "%s is not a repository's address", u)
	}
	return githttp.NewClient(c.http).NewUploadPackSession(endpoint, basicAuth(credential))
}
