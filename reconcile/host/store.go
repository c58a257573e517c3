package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// store is the mesh's registry as the last declaration says: blobs by a client, images by the
// engine through a proxy on loopback.
type store struct {
	sealing []byte
	proxy   *registry.Proxy // nil when there is no engine
	log     *slog.Logger

	mu     sync.Mutex
	client *registry.Client
	known  string // what the client was made from
}

var errNoStore = errors.New("this node has not been told of an artifact-store")

// openStore starts the proxy; it answers once a declaration has said where the registry is.
func openStore(port int, withEngine bool, sealing []byte, log *slog.Logger) (*store, error) {
	s := &store{sealing: sealing, log: log}
	if !withEngine {
		return s, nil
	}
	var err error
	s.proxy, err = registry.NewProxy(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), log)
	return s, err
}

// follow takes over what a declaration says of the registry.
func (s *store) follow(d schema.Declaration) error {
	raw, ok := d.Host.Config[schema.ConfigArtifactStore]
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == string(raw) {
		return nil
	}
	var told schema.ArtifactStore
	if err := json.Unmarshal(raw, &told); err != nil {
		return fmt.Errorf("read host.config.%s: %w", schema.ConfigArtifactStore, err)
	}
	config := registry.Config{URL: told.URL, CA: told.CA, Fingerprint: told.Fingerprint, Log: s.log, Attempts: 4}
	if told.Token != nil {
		token, err := pki.Open(s.sealing, *told.Token)
		if err != nil {
			return fmt.Errorf("open the token of the artifact-store: %w", err)
		}
		config.Token = string(token)
	}
	client, err := registry.NewClient(config)
	if err != nil {
		return err
	}
	if s.proxy != nil {
		if err := s.proxy.Update(config); err != nil {
			return err
		}
	}
	if s.client != nil {
		s.client.Close()
	}
	s.client, s.known = client, string(raw)
	return nil
}

func (s *store) blob(ctx context.Context, repository, digest string) (io.ReadCloser, int64, error) {
	s.mu.Lock()
	client := s.client
	s.mu.Unlock()
	if client == nil {
		return nil, 0, errNoStore
	}
	return client.Blob(ctx, repository, digest)
}

// image is what the engine calls a declared image.
func (s *store) image(declared string) string {
	if rest, found := strings.CutPrefix(declared, schema.RegistryName+"/"); found && s.proxy != nil {
		return s.proxy.Address() + "/" + rest
	}
	return declared
}

// serve answers the engine until ctx ends.
func (s *store) serve(ctx context.Context) {
	if s.proxy == nil {
		return
	}
	if err := s.proxy.Serve(ctx); err != nil && ctx.Err() == nil {
		s.log.Error("the registry proxy has ended", "error", err)
	}
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.Close()
	}
}
