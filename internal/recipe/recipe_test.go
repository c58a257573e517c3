package recipe_test

import (
	"testing"

	"github.com/mesh-control/mesh/internal/recipe"
	"github.com/mesh-control/mesh/schema"
)

// A toolchain that moves makes the modules written in its language behind, and no other.
func TestOnlyTheToolchainsUsedCount(t *testing.T) {
	t.Parallel()
	manifest := &schema.Manifest{Artifacts: map[string]schema.Built{
		"prog": {Kind: schema.KindBundle, Language: "go", Toolchain: "go1.26.1"},
		"site": {Kind: schema.KindArchive},
	}}
	built := recipe.For(recipe.Used(manifest))
	for _, c := range []struct {
		now  map[string]string
		same bool
	}{
		{nil, true}, // a controller that knows no versions
		{map[string]string{"go": "go1.26.1", "node": "node v20"}, true},
		{map[string]string{"go": "go1.26.1", "node": "node v22"}, true},
		{map[string]string{"go": "go1.27.0", "node": "node v20"}, false},
	} {
		if again := recipe.Again(manifest, c.now); (again == built) != c.same {
			t.Errorf("with %v: %s, built by %s", c.now, again, built)
		}
	}
	archive := &schema.Manifest{Artifacts: map[string]schema.Built{"site": {Kind: schema.KindArchive}}}
	if recipe.Again(archive, map[string]string{"go": "go1.27.0"}) != recipe.For(nil) {
		t.Error("a toolchain counts for a module without a bundle")
	}
}
