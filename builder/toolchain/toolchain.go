package toolchain

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/mesh-control/mesh/builder/archive"
)

// Toolchain compiles bundles of one language.
type Toolchain interface {
	// Version is what a recipe takes in: of the toolchain, never of the image it came in.
	Version(ctx context.Context) (string, error)
	Compile(ctx context.Context, c Compilation) (Product, error)
}

// Compilation is one call of a [Toolchain].
type Compilation struct {
	Source  []archive.Entry
	Package string // of Go "./cmd/x", of Rust a member's directory; "" is the source's root
	Scratch string // an empty directory, whose content lasts as long as the product is used
	Limit   int64  // most bytes the product may have
	Log     func(line string)
}

// Product is what a bundle holds. Entrypoint is what a container of it starts when its
// module.json names nothing; it is nil where there is no one thing to start, and Unclear
// says why. Image is the reference of the toolchain image it was compiled in, with the digest
// that it had; both are "" of the machine's own toolchain.
type Product struct {
	Entries     []archive.Entry
	Entrypoint  []string
	Unclear     string
	Image       string
	ImageDigest string
}

// The languages.
const (
	Go     = "go"
	Node   = "node"
	Rust   = "rust"
	Python = "python"
)

// AppDirectory is where the files of a language that is not compiled to programs stand in
// its bundle.
const AppDirectory = "app"

// Reason says why a bundle was not compiled.
type Reason = string

// The reasons of an [Error].
const (
	ReasonNotLocked Reason = "DependenciesNotLocked"
	ReasonCompile   Reason = "CompileFailed"
	ReasonSource    Reason = "SourceUnusable"
	ReasonUntrusted Reason = "RunsCodeOfModule"
)

// Error is a failure of the source, with what to do about it. Refused marks what this
// toolchain will not do.
type Error struct {
	Reason  Reason
	Remedy  string
	Refused bool
	Err     error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func fail(reason Reason, remedy, format string, args ...any) error {
	return &Error{Reason: reason, Remedy: remedy, Err: fmt.Errorf(format, args...)}
}

// language is what this package knows of one.
type language struct {
	file   string     // what its source is known by
	based  bool       // its bundle needs a base image with an interpreter to start
	caches []string   // names of the directories kept between compilations
	path   []string   // directories the container's programs stand in, beside /usr/bin
	asks   [][]string // commands whose output is the version
	plan   func(source source, c Compilation, at place) (*job, error)
	parse  func(lines []string) (string, error) // of what asks printed

	components func(source source, p Product) ([]Component, error)
}

var languages = map[string]language{Go: golang, Node: node, Rust: rust, Python: python}

// Files maps the file a language's source is known by to the language.
func Files() map[string]string {
	files := map[string]string{}
	for name, l := range languages {
		files[l.file] = name
	}
	return files
}

// Languages lists all of them, sorted.
func Languages() []string { return slices.Sorted(maps.Keys(languages)) }

// NeedsBase says whether a bundle of the language starts only on a base image that has its
// interpreter.
func NeedsBase(name string) bool { return languages[name].based }

// place says where things stand for a step: on the machine, or in its container.
type place struct {
	src, out, home, tmp string
	cache               func(name string) string
	proxy               string // where dependencies are fetched from; "" is the language's default
	certificates        string // file of those trusted for that; "" is the system's
}

// job is how one source is compiled.
type job struct {
	steps []step
	// collect is the directory of the place that holds the product: its src or out. "" is
	// the source as it is, with nothing run.
	collect string
	// runsCode says which code of the module runs in a step; "" is none.
	runsCode string
	// finish makes the product of what was collected.
	finish func(collected []archive.Entry) (Product, error)
}

// step is one command. Only steps that run no code of the module have a network or may
// write to caches.
type step struct {
	what    string // "compile"
	args    []string
	env     []string
	network bool
	caches  bool // writable; else the caches are there to be read
}

// steady is the part of every step's environment that keeps machines from differing.
var steady = []string{"LANG=C", "LC_ALL=C", "TZ=UTC", "SOURCE_DATE_EPOCH=315532800"}

// plan makes the job of a compilation.
func plan(name string, c Compilation, at place) (*job, error) {
	l, ok := languages[name]
	if !ok {
		return nil, fmt.Errorf("no language %q", name)
	}
	if c.Package != "" && c.Package != "." && l.based {
		return nil, fail(ReasonSource, `take "package" out, and set "path" to what is to be bundled`, "a %s bundle has no packages", name)
	}
	return l.plan(newSource(c.Source), c, at)
}
