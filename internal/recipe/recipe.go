// Package recipe says what decides a build's outcome beside the source: the version of the
// rules a builder follows, and the versions of the toolchains it compiles with. Versions,
// never digests of toolchain images, so that a toolchain in a container and the same one on
// the machine agree.
//
// Only the toolchains of the languages a module's bundles are written in count: a new Node
// makes no Go module behind. Which those are, the source's files say to whoever builds it,
// and the manifest of the same source to everybody else.
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
const Version = "2"

// Go is the key of the Go toolchain's version in the map [For] takes; its value is what
// `go env GOVERSION` prints, which is runtime.Version() of what it compiled.
const Go = "go"

// For is the recipe of a build with these toolchains, versions by language: "sha256:<hex>".
func For(used map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "mesh build recipe %s\n", Version)
	for _, language := range slices.Sorted(maps.Keys(used)) {
		fmt.Fprintf(&b, "%s %s\n", language, used[language])
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Again is the recipe the manifest's source would be built by with the toolchains there are
// now. A language that is missing from the map counts as it was: nobody knows better.
func Again(m *schema.Manifest, now map[string]string) string {
	used := Used(m)
	for language := range used {
		if version, known := now[language]; known {
			used[language] = version
		}
	}
	return For(used)
}

// Used are the versions of the toolchains a manifest was built with, by language.
func Used(m *schema.Manifest) map[string]string {
	used := map[string]string{}
	for _, a := range m.Artifacts {
		if a.Language != "" {
			used[a.Language] = a.Toolchain
		}
	}
	return used
}
