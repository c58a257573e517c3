// Package modules_test holds the modules the mesh ships with against its own parser.
package modules_test

import (
	"os"
	"path/filepath"
	"testing"

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
