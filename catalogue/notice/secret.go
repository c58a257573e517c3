package notice

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
)

// The bounds of a secret, in bytes. Below the lower one it can be guessed from a signature.
const (
	minSecret = 16
	maxSecret = 256
)

// standardPrefix marks a secret as Standard Webhooks writes them.
const standardPrefix = "whsec_"

// NewSecret makes a secret of 32 random bytes that every forge takes: "whsec_" and base64.
func NewSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it does not fail; see crypto/rand
	return standardPrefix + base64.StdEncoding.EncodeToString(key)
}

// CheckSecret refuses a secret that is too short to be one, or that a header cannot carry.
func CheckSecret(secret string) error {
	if len(secret) < minSecret || len(secret) > maxSecret {
		return errors.New("a hook's secret has 16 to 256 characters")
	}
	if strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("a hook's secret holds printable ASCII without spaces")
	}
	return nil
}

// standardKey is what Standard Webhooks signs with; nil when the secret is not one of theirs.
func standardKey(secret string) []byte {
	encoded, ok := strings.CutPrefix(secret, standardPrefix)
	if !ok {
		return nil
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) == 0 {
		return nil
	}
	return key
}
