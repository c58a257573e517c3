package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// Canonical encodes a value as RFC 8785 says: one value, one sequence of bytes, wherever
// it is encoded. A nil slice or map is written empty, so that it equals an empty one.
func Canonical(v any) ([]byte, error) {
	data, err := json.Marshal(v, jsonv1.DefaultOptionsV1(),
		json.FormatNilSliceAsNull(false), json.FormatNilMapAsNull(false))
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	text := jsontext.Value(data)
	if err := text.Canonicalize(); err != nil {
		return nil, fmt.Errorf("encode %T canonically: %w", v, err)
	}
	return text, nil
}

// Digest is "sha256:" and the lower-case hex of the bytes' SHA-256.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// HashDeclaration is the digest of what a node should be: the canonical declaration with
// epoch, generation, hash and signature left out, so that composing the same state again
// gives the same hash.
func HashDeclaration(d Declaration) (string, error) {
	content := struct {
		Declaration
		Epoch      *int64  `json:"epoch,omitempty"`
		Generation *int64  `json:"generation,omitempty"`
		Hash       *string `json:"hash,omitempty"`
		Signature  []byte  `json:"signature,omitempty"`
	}{Declaration: d}
	data, err := Canonical(content)
	if err != nil {
		return "", err
	}
	return Digest(data), nil
}

// SigningBytes is what a declaration's signature is over: the canonical declaration with
// only the signature left out.
func SigningBytes(d Declaration) ([]byte, error) {
	d.Signature = nil
	return Canonical(d)
}
