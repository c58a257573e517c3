// Package modules_test holds the modules the mesh ships with against its own parser.
package modules_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mesh-control/mesh/internal/carried"
	"github.com/mesh-control/mesh/schema"
)

// parsed reads every module.json below the given folders, by the module's name.
func parsed(t *testing.T, folders ...string) map[string]*schema.Module {
	t.Helper()
	modules := map[string]*schema.Module{}
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*", "module.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d modules, %v", folder, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			module, err := schema.ParseModule(file, text)
			if err != nil {
				t.Errorf("%v", err)
				continue
			}
			if want := filepath.Base(filepath.Dir(file)); module.Name != want {
				t.Errorf("%s is called %q", file, module.Name)
			}
			modules[module.Name] = module
		}
	}
	return modules
}

func TestEveryModuleParses(t *testing.T) {
	t.Parallel()
	parsed(t, ".", "../examples")
}

func TestS1_049_TheBuilderIsAnOrdinaryModule(t *testing.T) {
	t.Parallel()
	builder := parsed(t, ".")["builder"]
	if builder == nil {
		t.Fatal("there is no builder")
	}
	if len(builder.Artifacts) != 1 || builder.Artifacts["program"].Kind != schema.KindBundle {
		t.Errorf("artifacts: %+v", builder.Artifacts)
	}
	if !slices.Contains(builder.Claims, schema.Claim{Role: "builder"}) || !slices.Contains(builder.Capabilities, "container-runtime") {
		t.Errorf("claims %+v, capabilities %v", builder.Claims, builder.Capabilities)
	}
	types := map[string]string{}
	for _, resource := range builder.Resources {
		types[resource.ID] = resource.Type
	}
	if types["work"] != schema.TypeDirectory || types["program"] != schema.TypeContainer {
		t.Errorf("resources: %v", types)
	}
	if !builder.OwnSecrets["broker"].Given {
		t.Error("its credential is not given from outside")
	}
}

// A module of ours borrows only what a mesh without an outside is carried with.
func TestEveryUpstreamIsCarried(t *testing.T) {
	t.Parallel()
	have := []string{carried.BusyboxReference, carried.PostgresReference, carried.BrokerReference, carried.RegistryReference}
	for name, module := range parsed(t, ".", "../examples") {
		for artifact, recipe := range module.Artifacts {
			if recipe.Kind == schema.KindUpstream && !slices.Contains(have, recipe.Reference) {
				t.Errorf("%s borrows %s as %s, which nothing carries", name, recipe.Reference, artifact)
			}
		}
	}
}

func TestTheExamplesUseAllFourKinds(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	for _, module := range parsed(t, "../examples") {
		for _, recipe := range module.Artifacts {
			kinds[recipe.Kind] = true
		}
	}
	if len(kinds) != 4 {
		t.Errorf("only %v", kinds)
	}
}
