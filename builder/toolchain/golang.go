package toolchain

import (
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/builder/archive"
)

// goFlags make a program a function of its source and the compiler's version.
var goFlags = []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid="}

var golang = language{
	file: "go.mod", caches: []string{"build", "mod"}, path: []string{"/usr/local/go/bin"},
	asks:  [][]string{{"go", "env", "GOVERSION"}},
	parse: one,
	plan:  planGo,

	components: goComponents,
}

// goEnvironment is all a Go command sees, whatever the machine's is. Telemetry has no
// variable: it goes to the home directory, which is the compilation's own.
func goEnvironment(network bool, proxy, mode string) []string {
	if proxy == "" {
		proxy = "https://proxy.golang.org,direct"
	}
	if !network {
		proxy = "off"
	}
	return []string{
		"GOENV=off", "GOWORK=off", "GOTOOLCHAIN=local", "GO111MODULE=on", "GOFLAGS=-mod=" + mode + " -modcacherw",
		"GOPROXY=" + proxy, "GOSUMDB=off", // go.sum decides: -mod=readonly takes nothing that is not in it
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + runtime.GOARCH,
	}
}

func planGo(src source, c Compilation, at place) (*job, error) {
	pkg := c.Package
	if pkg == "" {
		pkg = "."
	}
	if pkg != "." && !strings.HasPrefix(pkg, "./") {
		pkg = "./" + pkg
	}
	mode := "readonly"
	if src.has("vendor/modules.txt") {
		mode = "vendor"
	}
	env := []string{"GOPATH=" + path.Join(at.home, "go"), "GOMODCACHE=" + at.cache("mod"), "GOCACHE=" + at.cache("build")}
	if at.certificates != "" {
		env = append(env, "SSL_CERT_FILE="+at.certificates)
	}
	j := &job{collect: at.out, finish: func(collected []archive.Entry) (Product, error) {
		return programs(collected, `set "package" to a main package`, "compile "+pkg+": it has no main package")
	}}
	if mode == "readonly" {
		j.steps = append(j.steps, step{
			what: "fetch dependencies", network: true, caches: true,
			args: []string{"go", "list", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", pkg},
			env:  slices.Concat(env, goEnvironment(true, at.proxy, mode)),
		})
	}
	j.steps = append(j.steps, step{
		what: "compile", caches: true, // no code of the module runs: there is no cgo, and go build generates nothing
		args: slices.Concat([]string{"go"}, goFlags, []string{"-o", at.out + "/", pkg}),
		env:  slices.Concat(env, goEnvironment(false, "", mode)),
	})
	return j, nil
}

// programs is the product of a compiler: executables, of which one alone is what starts.
func programs(collected []archive.Entry, remedy, none string) (Product, error) {
	p := Product{Unclear: "the bundle has several programs"}
	for _, e := range collected {
		if e.Kind != archive.Link && !strings.Contains(e.Name, "/") {
			e.Kind = archive.Executable
			p.Entries = append(p.Entries, e)
		}
	}
	switch len(p.Entries) {
	case 0:
		return p, fail(ReasonCompile, remedy, "%s", none)
	case 1:
		p.Entrypoint, p.Unclear = []string{"/" + p.Entries[0].Name}, ""
	}
	return p, nil
}
