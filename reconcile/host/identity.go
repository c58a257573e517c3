package host

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mesh-control/mesh/internal/pki"
)

// Identity is a node's own keys. The private halves never leave the machine.
type Identity struct {
	Signing ed25519.PrivateKey
	Sealing []byte // X25519 private key
	public  []byte
}

// PublicIdentity is what a node tells of itself when it joins.
type PublicIdentity struct {
	Node        string `json:"node"`
	Identity    []byte `json:"identity"`    // ed25519 public key
	Sealing     []byte `json:"sealing"`     // X25519 public key
	Fingerprint string `json:"fingerprint"` // of the sealing key
}

const (
	identityFile = "identity.key"
	sealingFile  = "sealing.key"
	pemType      = "MESH KEY"
)

// Fingerprint of the sealing key.
func (i Identity) Fingerprint() string { return pki.KeyFingerprint(i.public) }

// Public gives the public halves.
func (i Identity) Public(node string) PublicIdentity {
	public, _ := i.Signing.Public().(ed25519.PublicKey)
	return PublicIdentity{Node: node, Identity: public, Sealing: i.public, Fingerprint: i.Fingerprint()}
}

// LoadIdentity reads the node's keys, and makes those that have never been made. A key file
// that is there and cannot be read is an error and is left as it is: what is sealed to it may
// exist nowhere else.
func LoadIdentity(layout Layout) (Identity, error) {
	if err := os.MkdirAll(layout.state("identity"), 0o700); err != nil {
		return Identity{}, err
	}
	seed, err := loadKey(layout.state("identity", identityFile), func() ([]byte, error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		return key.Seed(), nil
	})
	if err != nil {
		return Identity{}, err
	}
	sealing, err := loadKey(layout.state("identity", sealingFile), func() ([]byte, error) {
		private, _, err := pki.NewSealingKey()
		return private, err
	})
	if err != nil {
		return Identity{}, err
	}
	key, err := ecdh.X25519().NewPrivateKey(sealing)
	if err != nil {
		return Identity{}, fmt.Errorf("read sealing key: %w", err)
	}
	return Identity{Signing: ed25519.NewKeyFromSeed(seed), Sealing: sealing, public: key.PublicKey().Bytes()}, nil
}

func loadKey(name string, generate func() ([]byte, error)) ([]byte, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := generate()
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
		text = pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: key})
		return key, writeFile(name, text, 0o600, keepOwner)
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemType || len(block.Bytes) != 32 {
		return nil, fmt.Errorf("%s is not a readable key; it is left as it is: restore it from a backup, or move it away and let the node join again", name)
	}
	return block.Bytes, nil
}
