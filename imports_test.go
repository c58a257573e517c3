package mesh_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/mesh-control/mesh/"

// Who may import whom. A row says which packages of ours, or which library, may be imported
// directly only by the packages listed (a trailing slash means everything beneath). Test
// files are free.
var onlyImportedBy = []struct {
	imported string
	by       []string
	why      string
}{
	{"github.com/compose-spec/compose-go/v2", []string{"internal/composefile"}, "only the command line reads Compose files"},
	{"github.com/jackc/pgx/v5", []string{"catalogue/", "reconcile/", "internal/store", "internal/testenv", "genesis/"}, "the database belongs to catalogue and controller; genesis makes their roles"},
	{"github.com/rabbitmq/amqp091-go", []string{"internal/bus"}, "one package speaks AMQP"},
	{"github.com/google/go-containerregistry", []string{"registry/", "builder/internal/", "internal/carried/"}, "one package speaks OCI; carried images are written as layouts"},
	{"github.com/distribution/distribution/v3", []string{"registry/"}, "one package speaks OCI"},
	{"github.com/go-git/go-git/v5", []string{"internal/git", "catalogue/source/", "builder/clone"}, "one package speaks git; two read what it fetched"},
	{"github.com/moby/moby", []string{"builder/engine/", "reconcile/host/engine/"}, "a container engine stands behind one interface"},
}

// A package of the left column links, directly or not, nothing of the right one.
var neverLinks = []struct {
	from string
	what []string
	why  string
}{
	{"schema", []string{module}, "the documents are a leaf"},
	{"internal/giturl", []string{module, "github.com/go-git/go-git/v5"}, "whoever shows or compares an address links no git"},
	{"reconcile/compose", []string{"github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go", module + "internal/"}, "composition does no I/O"},
	{"reconcile/host", []string{"github.com/jackc/pgx/v5"}, "a host has no database"},
	{"cmd/mesh-host", []string{"github.com/jackc/pgx/v5"}, "a host has no database"},
	{"cmd/mesh-builder", []string{"github.com/jackc/pgx/v5"}, "a builder has no database"},
	{"cmd/mesh", []string{"github.com/jackc/pgx/v5", "github.com/rabbitmq/amqp091-go"}, "the command line speaks HTTPS to the controller only"},
	{"cmd/mesh-controller", []string{module + "builder", module + "reconcile/host", "github.com/moby/moby"}, "the controller builds nothing and holds no engine"},
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func packages(t *testing.T) map[string]goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string]goPackage{}
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for decoder.More() {
		var p goPackage
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(p.ImportPath, module)] = p
	}
	return found
}

func under(name, pattern string) bool {
	return name == strings.TrimSuffix(pattern, "/") || strings.HasSuffix(pattern, "/") && strings.HasPrefix(name, pattern)
}

func TestImports(t *testing.T) {
	all := packages(t)
	for _, row := range onlyImportedBy {
		for name, p := range all {
			allowed := slices.ContainsFunc(row.by, func(by string) bool { return under(name, by) })
			for _, imported := range p.Imports {
				if !allowed && (imported == row.imported || strings.HasPrefix(imported, row.imported+"/")) {
					t.Errorf("%s imports %s: %s", name, imported, row.why)
				}
			}
		}
	}
	for _, row := range neverLinks {
		p, ok := all[row.from]
		if !ok {
			t.Errorf("there is no package %s; the table is out of date", row.from)
		}
		for _, dep := range p.Deps {
			for _, what := range row.what {
				if dep == what || strings.HasPrefix(dep, strings.TrimSuffix(what, "/")+"/") {
					t.Errorf("%s links %s: %s", row.from, dep, row.why)
				}
			}
		}
	}
}

// What is linked through CUE may hold sockets; composition itself imports nothing that could.
func TestComposeImportsNothingOfTheOutside(t *testing.T) {
	for _, imported := range packages(t)["reconcile/compose"].Imports {
		if slices.Contains([]string{"os", "os/exec", "net", "net/http", "time", "math/rand", "math/rand/v2"}, imported) {
			t.Errorf("reconcile/compose imports %s: composition does no I/O and has no clock", imported)
		}
	}
}

// The controller builds nothing and holds no engine: it links neither.
func TestS1_024_ControllerLinksNoBuilderAndNoEngine(t *testing.T) {
	controller, ok := packages(t)["cmd/mesh-controller"]
	if !ok {
		t.Fatal("there is no cmd/mesh-controller")
	}
	for _, dep := range controller.Deps {
		if dep == module+"builder" || strings.HasPrefix(dep, module+"builder/") || strings.HasPrefix(dep, "github.com/moby/moby") {
			t.Errorf("mesh-controller links %s", dep)
		}
	}
}
