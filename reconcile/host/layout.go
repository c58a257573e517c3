package host

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// Layout says where things are on this machine.
type Layout struct {
	// Root is put before every declared path; "" is the machine itself.
	Root string
	// State holds identity, declaration, records and logs; 0700.
	State string
}

// NewLayout puts a whole node beneath root. With "" declared paths are the machine's own and
// the state is in /var/lib/mesh/host.
func NewLayout(root string) Layout {
	if root == "" || root == "/" {
		return Layout{State: "/var/lib/mesh/host"}
	}
	return Layout{Root: filepath.Clean(root), State: filepath.Join(root, "state")}
}

// Path is where a declared path is on this machine.
func (l Layout) Path(declared string) string { return l.Root + path.Clean(declared) }

func (l Layout) state(elements ...string) string {
	return filepath.Join(append([]string{l.State}, elements...)...)
}

// The mesh's own directories: a path beneath one is the node's even when no resource declares it.
var meshDirectories = []string{"/etc/mesh", "/var/lib/mesh", "/run/mesh"}

// paths turns the paths of one declaration into this machine's.
type paths struct {
	layout Layout
	own    []string // declared directories and archives, and the directories of declared files
}

func newPaths(layout Layout, resources []schema.Resource) paths {
	p := paths{layout: layout, own: slices.Clone(meshDirectories)}
	for _, r := range resources {
		switch r.Type {
		case schema.TypeDirectory, schema.TypeArchive:
			p.own = append(p.own, path.Clean(r.Path))
		case schema.TypeFile:
			p.own = append(p.own, path.Clean(r.Path), path.Dir(path.Clean(r.Path)))
		}
	}
	p.own = slices.DeleteFunc(p.own, func(s string) bool { return s == "/" || s == "." })
	return p
}

// within says that name is dir or beneath it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// real is where a path named by a mount, service or env-file is: beneath the root when it is
// the node's own, else as written.
func (p paths) real(name string) string {
	clean := path.Clean(name)
	if !path.IsAbs(clean) || p.layout.Root == "" {
		return name
	}
	for _, dir := range p.own {
		if within(clean, dir) {
			return p.layout.Path(clean)
		}
	}
	return name
}

// argument is real for a word of a command line, also behind "--flag=".
func (p paths) argument(word string) string {
	if strings.HasPrefix(word, "/") {
		return p.real(word)
	}
	if flag, value, found := strings.Cut(word, "="); found && strings.HasPrefix(value, "/") {
		return flag + "=" + p.real(value)
	}
	return word
}
