package secrets

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/schema"
)

// Foundation is what a mesh's foundation provides by itself: the registry.
type Foundation struct {
	URL         string // https://host:port
	CA          string // PEM
	Fingerprint string
	Key         string // names the key tokens are signed with; another one remakes them
	// Token makes a bearer token that pulls, and pushes if push is set.
	Token func(subject string, push bool) string
}

// Config of the extension.
type Config struct {
	Mesh     string
	Registry *Foundation // nil where a module provides artifact-store
	Pushes   []string    // modules whose artifact-store credential may push
}

// Secrets makes and keeps them.
type Secrets struct {
	config Config
}

// New makes the keeper.
func New(config Config) *Secrets {
	return &Secrets{config: config}
}

type row struct {
	node, module, name, origin, variant string
	sealed                              schema.Sealed
	version                             int
}

func read(ctx context.Context, tx pgx.Tx, node, module, name string) (row, bool, error) {
	r := row{node: node, module: module, name: name}
	err := tx.QueryRow(ctx, `
SELECT origin, variant, recipient, info, sealed, version FROM mesh.secrets
WHERE node = $1 AND module = $2 AND name = $3 FOR UPDATE`, node, module, name).
		Scan(&r.origin, &r.variant, &r.sealed.Recipient, &r.sealed.Info, &r.sealed.Data, &r.version)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("read secret %s of %s on %s: %w", name, module, node, err)
	}
	return r, true, nil
}

// put seals a value and stores it as the next version.
func (s *Secrets) put(ctx context.Context, tx pgx.Tx, to recipient, next row, plaintext []byte) error {
	next.version++
	field := "secret." + next.name
	if next.module == compose.FoundationModule {
		field = next.name
	}
	sealed, err := s.seal(to, next.module, field, next.version, plaintext)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
INSERT INTO mesh.secrets (node, module, name, origin, variant, recipient, info, sealed, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (node, module, name) DO UPDATE SET origin = excluded.origin, variant = excluded.variant,
  recipient = excluded.recipient, info = excluded.info, sealed = excluded.sealed,
  version = excluded.version, made_at = excluded.made_at`,
		next.node, next.module, next.name, next.origin, next.variant, sealed.Recipient, sealed.Info, sealed.Data, next.version)
	if err != nil {
		return fmt.Errorf("store secret %s of %s on %s: %w", next.name, next.module, next.node, err)
	}
	return nil
}

// Give stores a value from outside. It takes the place of whatever stands there, generated
// or given.
func (s *Secrets) Give(ctx context.Context, tx pgx.Tx, node, module, name string, value []byte) error {
	to, err := lockRecipient(ctx, tx, node)
	if err != nil {
		return err
	}
	before, _, err := read(ctx, tx, node, module, name)
	if err != nil {
		return err
	}
	before.origin, before.variant = OriginGiven, ""
	return s.put(ctx, tx, to, before, value)
}

// own makes what is generated and missing, or sealed to a key the node no longer has.
func (s *Secrets) own(ctx context.Context, tx pgx.Tx, to recipient, module, name string) error {
	before, found, err := read(ctx, tx, to.node, module, name)
	if err != nil {
		return err
	}
	if found && (before.origin == OriginGiven || before.sealed.Recipient == to.fingerprint) {
		return nil
	}
	before.origin = OriginGenerated
	return s.put(ctx, tx, to, before, []byte(generate()))
}

// hostToken makes the token a host pulls with, and gives what the host is told of the
// registry.
func (s *Secrets) hostToken(ctx context.Context, tx pgx.Tx, to recipient) (*schema.ArtifactStore, error) {
	registry := s.config.Registry
	if registry == nil {
		return nil, nil
	}
	before, found, err := read(ctx, tx, to.node, compose.FoundationModule, schema.ConfigArtifactStore)
	if err != nil {
		return nil, err
	}
	if !found || before.variant != registry.Key || before.sealed.Recipient != to.fingerprint {
		before.origin, before.variant = OriginGenerated, registry.Key
		if err := s.put(ctx, tx, to, before, []byte(registry.Token("host/"+to.node, false))); err != nil {
			return nil, err
		}
		if before, _, err = read(ctx, tx, to.node, compose.FoundationModule, schema.ConfigArtifactStore); err != nil {
			return nil, err
		}
	}
	return &schema.ArtifactStore{URL: registry.URL, CA: registry.CA, Fingerprint: registry.Fingerprint, Token: &before.sealed}, nil
}
