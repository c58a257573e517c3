package genesis

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// FoundationProcesses is the foundation whose servers are processes of this machine.
const FoundationProcesses = "processes"

// proved are the components that the mesh has to have built itself, and their artifacts.
var proved = []struct{ module, artifact string }{
	{"controller", "server"}, {"catalogue", "server"}, {builderModule, "program"},
}

// Verify repeats the proof at any time.
func (in *Installer) Verify(ctx context.Context) error {
	dir, err := filepath.Abs(in.Dir)
	if err != nil {
		return err
	}
	in.Dir = dir
	if !exists(in.layout().ports()) {
		return fmt.Errorf("verify: there is no installation in %s", dir)
	}
	if _, err := in.preflight(ctx); err != nil {
		return err
	}
	if in.keys, err = makeKeys(in.layout(), in.Mesh); err != nil {
		return err
	}
	_, err = in.prove(ctx)
	return err
}

// prove resolves what each component runs as a manifest in the mesh's own registry. An
// image id has the same shape and does not resolve.
func (in *Installer) prove(ctx context.Context) (string, error) {
	client := in.client()
	defer client.Close()
	shown, err := api.NodeShow.Do(ctx, client, api.NodeRef{Node: in.Node})
	if err != nil {
		return "", err
	}
	store, err := in.registryClient()
	if err != nil {
		return "", err
	}
	defer store.Close()
	running := map[string][]string{}
	for _, resource := range shown.Resources {
		module, _, _ := strings.Cut(resource.ID, "/")
		if resource.Type == schema.TypeContainer {
			running[module] = append(running[module], resource.Digest)
		}
	}
	var problems []error
	for _, component := range proved {
		if len(running[component.module]) == 0 {
			problems = append(problems, fmt.Errorf("%s does not run", component.module))
		}
		for _, image := range running[component.module] {
			if err := store.Resolve(ctx, registry.ImageRepository(component.module, component.artifact), image); err != nil {
				problems = append(problems, fmt.Errorf("%s runs %q, which does not resolve as a manifest in the mesh's registry: %w", component.module, image, err))
				continue
			}
			fmt.Fprintf(in.Out, "      ok    %-11s %s\n", component.module, image)
		}
	}
	for _, component := range []string{"registry", "postgres", "broker"} {
		fmt.Fprintf(in.Out, "      none  %-11s a process of this machine; there is no image to pin\n", component)
	}
	if err := errors.Join(problems...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d components run what the mesh's own registry holds", len(proved)), nil
}
