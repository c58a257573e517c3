package toolchain

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/builder/archive"
)

var node = language{
	file: "package.json", based: true, caches: []string{"npm"}, path: []string{"/usr/local/bin"},
	asks:  [][]string{{"node", "--version"}, {"npm", "--version"}},
	parse: func(lines []string) (string, error) { return labelled(lines, "node", "npm") },
	plan:  planNode,

	components: nodeComponents,
}

// packageJSON is what is read of a package.json.
type packageJSON struct {
	Name         string            `json:"name"`
	Main         string            `json:"main"`
	Bin          json.RawMessage   `json:"bin"`
	Scripts      map[string]string `json:"scripts"`
	Dependencies map[string]string `json:"dependencies"`
	Development  map[string]string `json:"devDependencies"`
	Optional     map[string]string `json:"optionalDependencies"`
}

// packageLock is what is read of a package-lock.json.
type packageLock struct {
	Version  int                      `json:"lockfileVersion"`
	Packages map[string]lockedPackage `json:"packages"`
}

type lockedPackage struct {
	Name      string `json:"name"` // where it is another than that of its directory
	Version   string `json:"version"`
	Resolved  string `json:"resolved"`
	Integrity string `json:"integrity"`
	Link      bool   `json:"link"`
	InBundle  bool   `json:"inBundle"`

	Development bool `json:"dev"`
}

func planNode(src source, _ Compilation, at place) (*job, error) {
	var p packageJSON
	if err := decode(src, "package.json", &p); err != nil {
		return nil, err
	}
	lock, outside, err := readLock(src, p)
	if err != nil {
		return nil, err
	}
	start, unclear := p.start(src)
	j := &job{finish: func(collected []archive.Entry) (Product, error) {
		return Product{Entries: moved(collected, AppDirectory, leftByNPM), Entrypoint: start, Unclear: unclear}, nil
	}}
	env := []string{
		"npm_config_cache=" + at.cache("npm"), "npm_config_userconfig=" + at.home + "/npmrc", "npm_config_globalconfig=" + at.home + "/npmrc.global",
		"npm_config_update_notifier=false", "npm_config_audit=false", "npm_config_fund=false", "npm_config_loglevel=warn", "npm_config_yes=true",
	}
	if at.proxy != "" {
		env = append(env, "npm_config_registry="+at.proxy)
	}
	if at.certificates != "" {
		env = append(env, "NODE_EXTRA_CA_CERTS="+at.certificates)
	}
	script := p.Scripts["build"]
	if lock {
		args := []string{"npm", "ci", "--ignore-scripts"}
		if script == "" {
			args = append(args, "--omit=dev")
		}
		if !outside {
			args = append(args, "--offline")
		}
		j.collect = at.src
		j.steps = append(j.steps, step{what: "fetch dependencies", args: args, env: env, network: outside, caches: true})
	}
	if script != "" {
		j.collect, j.runsCode = at.src, `the script "build" of its package.json`
		apart := append(slices.Clone(env), "npm_config_cache="+at.tmp+"/npm", "npm_config_offline=true")
		j.steps = append(j.steps, step{what: `run the script "build"`, args: []string{"npm", "run", "build"}, env: apart})
		if lock && len(p.Development) > 0 {
			j.steps = append(j.steps, step{
				what: "leave out development dependencies", args: []string{"npm", "prune", "--omit=dev", "--ignore-scripts"}, env: apart,
			})
		}
	}
	return j, nil
}

// lockFile is the name of the file that npm heeds.
func lockFile(src source) string {
	if src.has("npm-shrinkwrap.json") {
		return "npm-shrinkwrap.json"
	}
	return "package-lock.json"
}

// readLock checks that everything the package depends on is pinned by content. It says
// whether there is a lock file, and whether it names anything outside the source.
func readLock(src source, p packageJSON) (locked, outside bool, err error) {
	name := lockFile(src)
	if !src.has(name) {
		if wants := slices.Concat(slices.Sorted(maps.Keys(p.Dependencies)), slices.Sorted(maps.Keys(p.Development)), slices.Sorted(maps.Keys(p.Optional))); len(wants) > 0 && !src.beneath("node_modules") {
			return false, false, fail(ReasonNotLocked, "run npm install and commit package-lock.json", "package.json depends on %s, and there is no package-lock.json", strings.Join(wants, ", "))
		}
		return false, false, nil
	}
	var lock packageLock
	if err := decode(src, name, &lock); err != nil {
		return false, false, err
	}
	if lock.Version < 2 {
		return false, false, fail(ReasonNotLocked, "run npm install --package-lock-only with npm 7 or newer", "%s has version %d, and 2 or 3 is needed", name, lock.Version)
	}
	for _, at := range slices.Sorted(maps.Keys(lock.Packages)) {
		entry := lock.Packages[at]
		if at == "" || entry.Link || entry.InBundle || !strings.Contains(at, "node_modules/") {
			continue
		}
		if !strong(entry.Integrity) {
			return false, false, fail(ReasonNotLocked, "depend on a published version or on a file: beneath the bundle's path",
				"%s pins %s by no SHA-256 or stronger", name, at)
		}
		if !strings.HasPrefix(entry.Resolved, "file:") {
			outside = true
		}
	}
	return true, outside, nil
}

// strong says whether a subresource integrity has a hash that holds.
func strong(integrity string) bool {
	for one := range strings.FieldsSeq(integrity) {
		if strings.HasPrefix(one, "sha512-") || strings.HasPrefix(one, "sha384-") || strings.HasPrefix(one, "sha256-") {
			return true
		}
	}
	return false
}

// leftByNPM names what npm leaves beside the dependencies: notes to itself.
func leftByNPM(name string) bool {
	return name == "node_modules/.package-lock.json" || strings.HasPrefix(name, "node_modules/.cache/")
}

// start is what runs the package: its one program, else its main file.
func (p packageJSON) start(src source) (command []string, unclear string) {
	file := p.Main
	var single string
	var several map[string]string
	switch {
	case json.Unmarshal(p.Bin, &single) == nil && single != "":
		file = single
	case json.Unmarshal(p.Bin, &several) == nil && len(several) == 1:
		for _, only := range several {
			file = only
		}
	case len(several) > 1:
		return nil, `"bin" of package.json names several programs`
	}
	if file == "" && (src.has("index.js") || p.Scripts["build"] != "") {
		file = "index.js"
	}
	if file == "" {
		return nil, `package.json has neither "bin" nor "main", and there is no index.js`
	}
	return []string{"node", path.Join("/", AppDirectory, file)}, ""
}

func decode(src source, name string, into any) error {
	data, err := src.read(name)
	if err != nil {
		return err
	}
	if data == nil {
		return fail(ReasonSource, "", "there is no %s", name)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fail(ReasonSource, "", "read %s: %w", name, err)
	}
	return nil
}
