package pki

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// What a repository's secret is for.
const (
	RepositoryCredential = "credential" // reading it: a [schema.RepositoryCredential]
	RepositoryHook       = "hook"       // signing its webhooks
)

const repositorySeal = "mesh-repository/1"

// SealRepository seals a repository's secret to one key, bound to its purpose, the URL under
// which the mesh watches the repository, that key, and a version that each value has of its own.
func SealRepository(public []byte, purpose, url string, version int64, plaintext []byte) (schema.Sealed, error) {
	info := strings.Join([]string{repositorySeal, purpose, url, KeyFingerprint(public), strconv.FormatInt(version, 10)}, "\n")
	return Seal(public, info, plaintext)
}

// OpenRepository opens a repository's secret, and nothing that was sealed for another
// purpose or another repository.
func OpenRepository(private []byte, purpose, url string, sealed schema.Sealed) ([]byte, error) {
	bound := sealed.Info[:max(strings.LastIndex(sealed.Info, "\n"), 0)]
	if bound != strings.Join([]string{repositorySeal, purpose, url, sealed.Recipient}, "\n") {
		return nil, fmt.Errorf("%w: it is not the %s of this repository", ErrOpen, purpose)
	}
	return Open(private, sealed)
}
