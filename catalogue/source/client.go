package source

import (
	"context"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mesh-control/mesh/internal/git"
)

// Config of a [Client]; zero fields take the defaults named.
type Config struct {
	// Dir holds packs too large for memory, see [git.Config]. Default: a directory below the
	// system's temporary one.
	Dir         string
	MemoryBytes int64 // of unpacked objects, see [git.Config]
	MaxBytes    int64 // the largest pack accepted at all
	// Registry takes the counters; nil keeps them unregistered.
	Registry prometheus.Registerer
}

// Client asks and fetches. It holds no state of any repository and may be shared.
type Client struct {
	git     *git.Client
	metrics *metrics
}

// New makes a client and removes what an earlier process left in its directory.
func New(config Config) (*Client, error) {
	if config.Dir == "" {
		config.Dir = filepath.Join(os.TempDir(), "mesh-catalogue")
	}
	metrics := newMetrics(config.Registry)
	speaker, err := git.New(git.Config{
		Dir: config.Dir, MemoryBytes: config.MemoryBytes, MaxBytes: config.MaxBytes,
		Received: func(n int) { metrics.bytes.Add(float64(n)) },
	})
	if err != nil {
		return nil, err
	}
	return &Client{git: speaker, metrics: metrics}, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.git.Close() }

// LsRemote asks the repository at address where ref stands; see [git.Client.LsRemote].
func (c *Client) LsRemote(ctx context.Context, address, ref string, credential *git.Credential) (git.Head, error) {
	head, err := c.git.LsRemote(ctx, address, ref, credential)
	c.metrics.lsRemote.WithLabelValues(outcome(err)).Inc()
	return head, err
}

// Fetch reads the commit at which ref stands now; see [git.Client.Fetch]. Close the snapshot.
func (c *Client) Fetch(ctx context.Context, address, ref string, credential *git.Credential) (*Snapshot, error) {
	commit, err := c.git.Fetch(ctx, address, ref, credential)
	c.metrics.fetch.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return nil, err
	}
	return &Snapshot{Commit: commit}, nil
}
