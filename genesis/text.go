package genesis

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// buildID is 128 random bits, as every build's.
func buildID() string {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}

func splitLines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}
