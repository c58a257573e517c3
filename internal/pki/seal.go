package pki

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// A sealed value is opened with one suite, fixed: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256,
// ChaCha20-Poly1305.
func suite() (hpke.KDF, hpke.AEAD) { return hpke.HKDFSHA256(), hpke.ChaCha20Poly1305() }

// NewSealingKey makes a node's X25519 key pair: 32 bytes each.
func NewSealingKey() (private, public []byte, err error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make sealing key: %w", err)
	}
	return key.Bytes(), key.PublicKey().Bytes(), nil
}

// KeyFingerprint is "sha256:<hex>" over the bytes of a public key.
func KeyFingerprint(public []byte) string {
	sum := sha256.Sum256(public)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// SealInfo is what a sealed value is bound to, so that it opens nowhere else. Version tells
// one value of a secret from the next.
func SealInfo(mesh, node, fingerprint, module, secret, version string) string {
	return strings.Join([]string{"mesh-seal/1", mesh, node, fingerprint, module, secret, version}, "\n")
}

// Seal encrypts plaintext to the X25519 public key, bound to info.
func Seal(public []byte, info string, plaintext []byte) (schema.Sealed, error) {
	raw, err := ecdh.X25519().NewPublicKey(public)
	if err != nil {
		return schema.Sealed{}, fmt.Errorf("seal: the recipient's key: %w", err)
	}
	key, err := hpke.NewDHKEMPublicKey(raw)
	if err != nil {
		return schema.Sealed{}, fmt.Errorf("seal: the recipient's key: %w", err)
	}
	kdf, aead := suite()
	data, err := hpke.Seal(key, kdf, aead, []byte(info), plaintext)
	if err != nil {
		return schema.Sealed{}, fmt.Errorf("seal: %w", err)
	}
	return schema.Sealed{Recipient: KeyFingerprint(public), Info: info, Data: data}, nil
}

// ErrOpen says that a sealed value was made for another key or another field, or altered.
var ErrOpen = errors.New("the sealed value does not open with this node's key")

// Open decrypts a sealed value with the X25519 private key. The caller compares Info with
// the field the value stands in before it believes it.
func Open(private []byte, sealed schema.Sealed) ([]byte, error) {
	raw, err := ecdh.X25519().NewPrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("open: the sealing key: %w", err)
	}
	if sealed.Recipient != KeyFingerprint(raw.PublicKey().Bytes()) {
		return nil, fmt.Errorf("%w: it is sealed to %s", ErrOpen, sealed.Recipient)
	}
	key, err := hpke.NewDHKEMPrivateKey(raw)
	if err != nil {
		return nil, fmt.Errorf("open: the sealing key: %w", err)
	}
	kdf, aead := suite()
	plaintext, err := hpke.Open(key, kdf, aead, []byte(sealed.Info), sealed.Data)
	if err != nil {
		return nil, ErrOpen
	}
	return plaintext, nil
}

// ErrSignature says that a declaration was not signed by the mesh's declaration key.
var ErrSignature = errors.New("the declaration is not signed by this mesh's declaration key")

// SignDeclaration fills in the signature, over the canonical bytes without it.
func SignDeclaration(key ed25519.PrivateKey, declaration *schema.Declaration) error {
	message, err := signed(*declaration)
	if err != nil {
		return err
	}
	declaration.Signature = ed25519.Sign(key, message)
	return nil
}

// VerifyDeclaration checks the signature.
func VerifyDeclaration(key ed25519.PublicKey, declaration schema.Declaration) error {
	message, err := signed(declaration)
	if err != nil {
		return err
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, message, declaration.Signature) {
		return ErrSignature
	}
	return nil
}

// signed prefixes the bytes with their purpose, so that the key's signature over anything
// else can never pass for a declaration.
func signed(declaration schema.Declaration) ([]byte, error) {
	declaration.Signature = nil
	body, err := schema.Canonical(declaration)
	if err != nil {
		return nil, fmt.Errorf("encode declaration of %s: %w", declaration.Node, err)
	}
	return bytes.Join([][]byte{[]byte("mesh-declaration/1"), body}, []byte{0}), nil
}
