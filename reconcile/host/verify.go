package host

import (
	"crypto/ed25519"
	"errors"
	"fmt"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

// ErrRefused is in the chain of every reason not to obey a declaration.
var ErrRefused = errors.New("declaration refused")

// ErrOld says that a declaration is older than one already seen; it is acknowledged and
// passed over.
var ErrOld = errors.New("declaration is older than the one applied")

// Verifier decides whether bytes are a declaration this node obeys.
type Verifier struct {
	Node string
	Key  ed25519.PublicKey
	// Epoch, Generation and Hash of the newest declaration seen.
	Epoch, Generation int64
	Hash              string
}

// Verify decodes strictly and checks signature, node, epoch and generation, in that order.
func (v Verifier) Verify(name string, data []byte) (schema.Declaration, error) {
	parsed, err := schema.ParseDeclaration(name, data)
	if err != nil {
		return schema.Declaration{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	d := *parsed
	if err := pki.VerifyDeclaration(v.Key, d); err != nil {
		return d, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if d.Node != v.Node {
		return d, fmt.Errorf("%w: it is for node %q, this is %q", ErrRefused, d.Node, v.Node)
	}
	if d.Schema > schema.Version {
		return d, fmt.Errorf("%w: it is written in schema %d, this host knows %d", ErrRefused, d.Schema, schema.Version)
	}
	if d.Hash == "" {
		if d.Hash, err = schema.HashDeclaration(d); err != nil {
			return d, fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	switch {
	case d.Epoch < v.Epoch, d.Epoch == v.Epoch && d.Generation < v.Generation:
		return d, fmt.Errorf("%w: generation %d of epoch %d, seen %d of %d", ErrOld, d.Generation, d.Epoch, v.Generation, v.Epoch)
	case d.Epoch == v.Epoch && d.Generation == v.Generation && v.Hash != "" && d.Hash != v.Hash:
		return d, fmt.Errorf("%w: two different declarations are signed as generation %d: %s and %s", ErrRefused, d.Generation, v.Hash, d.Hash)
	}
	return d, nil
}
