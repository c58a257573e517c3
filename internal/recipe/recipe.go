// Package recipe says what decides a build's outcome beside the source: the version of the
// rules a builder follows, and the versions of the toolchains it compiles with. Versions,
// never digests of toolchain images, so that a toolchain in a container and the same one on
// the machine agree.
//
// It is apart from the builder so that whoever decides what is behind can compute the same
// hash without what a builder links.
package recipe

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// Version of the rules. Raise it when the same source would give other bytes than before:
// every module is then behind.
const Version = "1"

// Go is the key of the Go toolchain's version in the map [For] takes; its value is what
// `go env GOVERSION` prints, which is runtime.Version() of what it compiled.
const Go = "go"

// For is the recipe a manifest of m records: "sha256:<hex>". Toolchain versions count only
// for a module that has a bundle.
func For(m *schema.Module, toolchains map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "mesh build recipe %s\n", Version)
	if HasBundle(m) {
		for _, language := range slices.Sorted(maps.Keys(toolchains)) {
			fmt.Fprintf(&b, "%s %s\n", language, toolchains[language])
		}
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// HasBundle says whether building m takes a toolchain.
func HasBundle(m *schema.Module) bool {
	for _, a := range m.Artifacts {
		if a.Kind == schema.KindBundle {
			return true
		}
	}
	return false
}
