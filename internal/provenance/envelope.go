package provenance

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

// Why an envelope is not believed.
var (
	ErrAltered    = errors.New("it was altered after it was signed")
	ErrUnknownKey = errors.New("it is signed with a key this mesh never issued")
	ErrWithdrawn  = errors.New("it is signed with a key that was withdrawn before the build was recorded")
)

// Key is a public key that a mesh issued to a builder. Withdrawn is zero while it is in use.
type Key struct {
	Builder   string
	Public    ed25519.PublicKey
	Withdrawn time.Time
}

// Sign gives the DSSE envelope of a statement, as JSON.
func Sign(key ed25519.PrivateKey, statement Statement) ([]byte, error) {
	body, err := schema.Canonical(statement)
	if err != nil {
		return nil, fmt.Errorf("encode provenance: %w", err)
	}
	public, _ := key.Public().(ed25519.PublicKey)
	return schema.Canonical(dsse.Envelope{
		PayloadType: MediaTypeStatement, Payload: base64.StdEncoding.EncodeToString(body),
		Signatures: []dsse.Signature{{
			KeyID: pki.KeyFingerprint(public),
			Sig:   base64.StdEncoding.EncodeToString(ed25519.Sign(key, dsse.PAE(MediaTypeStatement, body))),
		}},
	})
}

// Open gives what an envelope says and the key that signed it, if that is one of keys and was
// in use when the build was recorded. A key that was withdrawn later vouches for what it had
// signed until then. Its error is or wraps [ErrAltered], [ErrUnknownKey] or [ErrWithdrawn].
func Open(envelope []byte, keys []Key, recorded time.Time) (Statement, Key, error) {
	var e dsse.Envelope
	if err := json.Unmarshal(envelope, &e); err != nil {
		return Statement{}, Key{}, fmt.Errorf("%w: it is no DSSE envelope: %w", ErrAltered, err)
	}
	body, err := e.DecodeB64Payload()
	if err != nil || len(e.Signatures) == 0 {
		return Statement{}, Key{}, fmt.Errorf("%w: it is no DSSE envelope with a signature", ErrAltered)
	}
	key, err := signer(e, dsse.PAE(e.PayloadType, body), keys)
	if err != nil {
		return Statement{}, Key{}, err
	}
	if !key.Withdrawn.IsZero() && recorded.After(key.Withdrawn) {
		return Statement{}, key, fmt.Errorf("%w: that of builder %s, withdrawn %s", ErrWithdrawn, key.Builder, key.Withdrawn.UTC().Format(time.RFC3339))
	}
	var s Statement
	if err := json.Unmarshal(body, &s); err != nil || e.PayloadType != MediaTypeStatement {
		return Statement{}, key, fmt.Errorf("builder %s signed something that is no in-toto statement (%s)", key.Builder, e.PayloadType)
	}
	if s.Type != StatementType || s.PredicateType != PredicateType || s.Predicate.BuildDefinition.BuildType != BuildType {
		return Statement{}, key, fmt.Errorf("builder %s signed a statement of another kind: %s, %s", key.Builder, s.PredicateType, s.Predicate.BuildDefinition.BuildType)
	}
	return s, key, nil
}

// signer finds the key whose signature holds. What stands as key id is signed by nobody, so it
// chooses among known keys and proves nothing.
func signer(e dsse.Envelope, message []byte, keys []Key) (Key, error) {
	named := ""
	for _, signature := range e.Signatures {
		raw, err := base64.StdEncoding.DecodeString(signature.Sig)
		for _, key := range keys {
			if pki.KeyFingerprint(key.Public) != signature.KeyID {
				continue
			}
			named = key.Builder
			if err == nil && ed25519.Verify(key.Public, message, raw) {
				return key, nil
			}
		}
	}
	if named != "" {
		return Key{}, fmt.Errorf("%w: the signature of builder %s does not hold", ErrAltered, named)
	}
	return Key{}, fmt.Errorf("%w: %s", ErrUnknownKey, e.Signatures[0].KeyID)
}
