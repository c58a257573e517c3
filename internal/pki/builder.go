package pki

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
)

// builderSigning separates what is signed from what is sealed: the one key a builder holds is
// never used for both.
const builderSigning = "mesh-builder-signing/1"

// BuilderSigningKey derives the key a builder signs provenance with from the private key it was
// issued (32 bytes, from [NewSealingKey]).
func BuilderSigningKey(private []byte) (ed25519.PrivateKey, error) {
	if len(private) != 32 {
		return nil, fmt.Errorf("derive a builder's signing key: its key has %d bytes, not 32", len(private))
	}
	seed, err := hkdf.Key(sha256.New, private, nil, builderSigning, ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive a builder's signing key: %w", err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
