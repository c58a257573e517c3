package secrets

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

// Origins of a secret.
const (
	OriginGenerated = "generated"
	OriginGiven     = "given"
)

// ErrNoNode says that there is no node of that name.
var ErrNoNode = errors.New("no such node")

// ErrRejoined says that a node's sealing key is no longer the one a value was meant for.
var ErrRejoined = errors.New("the node's sealing key has changed")

// recipient is a node's sealing key, its row held so that the key cannot change until the
// transaction ends.
type recipient struct {
	node, address, fingerprint string
	key                        []byte
}

func lockRecipient(ctx context.Context, tx pgx.Tx, node string) (recipient, error) {
	r := recipient{node: node}
	err := tx.QueryRow(ctx, `SELECT address, fingerprint, sealing_key FROM mesh.nodes WHERE name = $1 FOR SHARE`, node).
		Scan(&r.address, &r.fingerprint, &r.key)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, fmt.Errorf("seal for %s: %w", node, ErrNoNode)
	}
	if err != nil {
		return r, fmt.Errorf("seal for %s: %w", node, err)
	}
	if pki.KeyFingerprint(r.key) != r.fingerprint {
		return r, fmt.Errorf("seal for %s: %w: its key and its fingerprint do not belong together", node, ErrRejoined)
	}
	return r, nil
}

// seal binds a value to mesh, node, key, module, field and version. The module and the field
// joined by a slash are the id of the resource that carries the value.
func (s *Secrets) seal(r recipient, module, name string, version int, plaintext []byte) (schema.Sealed, error) {
	info := pki.SealInfo(s.config.Mesh, r.node, r.fingerprint, module, name, strconv.Itoa(version))
	sealed, err := pki.Seal(r.key, info, plaintext)
	if err != nil {
		return sealed, fmt.Errorf("seal %s of %s for %s: %w", name, module, r.node, err)
	}
	return sealed, nil
}

// generate is 32 random bytes, in characters that need no quoting anywhere.
func generate() string {
	var value [32]byte
	_, _ = rand.Read(value[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(value[:])
}

// account is the user and database name of a consumer at a provider, at most 63 bytes, which
// is the longest identifier PostgreSQL keeps.
func account(consumer, node string) string {
	name := consumer + "_" + node
	if len(name) <= 63 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:46] + "_" + hex.EncodeToString(sum[:8])
}
