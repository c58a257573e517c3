package carried

import (
	"context"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// RegistryReference is the public image that [Registry] stands for.
const RegistryReference = "ghcr.io/mesh-control/mesh-registry:1"

// Registry makes the image of the mesh's own registry from its static program, mesh-registry:
// the program, and nothing beside it.
func Registry(program string) func(ctx context.Context, cache string) (Image, error) {
	return func(_ context.Context, cache string) (Image, error) {
		text, err := os.ReadFile(program)
		if err != nil {
			return Image{}, fmt.Errorf("carry %s: %w", RegistryReference, err)
		}
		const at = "/mesh-registry"
		return cached(cache, "mesh-registry", string(text), RegistryReference, func(dir string) error {
			t := tree{}
			t.file(at, program, 0o755)
			return write(dir, t, v1.Config{Entrypoint: []string{at}})
		})
	}
}
