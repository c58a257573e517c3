package toolchain

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/mesh-control/mesh/builder/archive"
)

var python = language{
	file: "pyproject.toml", based: true, caches: []string{"pip"}, path: []string{"/usr/local/bin"},
	asks:  [][]string{{"python3", "-c", "import platform; print(platform.python_version())"}},
	parse: func(lines []string) (string, error) { return labelled(lines, "python") },
	plan:  planPython,

	components: pythonComponents,
}

// The files that pin what a pyproject.toml depends on: exact versions with hashes, and,
// where they are brought along, the wheels themselves.
const (
	requirements = "requirements.txt"
	wheels       = "wheels"
	mainFile     = "__main__.py"
)

// pyproject is what is read of a pyproject.toml.
type pyproject struct {
	Project struct {
		Name         string            `toml:"name"`
		Dependencies []string          `toml:"dependencies"`
		Scripts      map[string]string `toml:"scripts"`
	} `toml:"project"`
}

func planPython(src source, _ Compilation, at place) (*job, error) {
	data, err := src.read("pyproject.toml")
	if err != nil {
		return nil, err
	}
	var p pyproject
	if err := toml.Unmarshal(data, &p); err != nil {
		return nil, fail(ReasonSource, "", "read pyproject.toml: %w", err)
	}
	pinned, err := src.read(requirements)
	if err != nil {
		return nil, err
	}
	if pinned == nil && len(p.Project.Dependencies) > 0 {
		return nil, fail(ReasonNotLocked, "run pip-compile --generate-hashes and commit "+requirements,
			"pyproject.toml depends on %s, and there is no %s", strings.Join(p.Project.Dependencies, ", "), requirements)
	}
	own, start, unclear, err := pythonFiles(src, p)
	if err != nil {
		return nil, err
	}
	j := &job{finish: func(collected []archive.Entry) (Product, error) {
		if pinned == nil {
			collected = nil // the source, which own has
		}
		entries, err := beside(own, moved(collected, "", leftByPip))
		return Product{Entries: moved(entries, AppDirectory, nil), Entrypoint: start, Unclear: unclear}, err
	}}
	if pinned == nil {
		return j, nil
	}
	if err := checkPins(pinned); err != nil {
		return nil, err
	}
	env := []string{
		"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1", "PIP_CONFIG_FILE=/dev/null", "PIP_ROOT_USER_ACTION=ignore",
		"PIP_CACHE_DIR=" + at.cache("pip"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONNOUSERSITE=1", "PIP_PROGRESS_BAR=off",
	}
	if at.proxy != "" {
		env = append(env, "PIP_INDEX_URL="+at.proxy)
	}
	if at.certificates != "" {
		env = append(env, "PIP_CERT="+at.certificates)
	}
	from := path.Join(at.src, wheels)
	locked := []string{"--require-hashes", "--only-binary=:all:", "--no-deps", "-r", path.Join(at.src, requirements)}
	if !src.beneath(wheels) {
		from = path.Join(at.tmp, wheels)
		j.steps = append(j.steps, step{
			what: "fetch dependencies", network: true, caches: true, env: env,
			args: append([]string{"python3", "-m", "pip", "download", "-d", from}, locked...),
		})
	}
	j.collect = at.out
	j.steps = append(j.steps, step{
		what: "unpack dependencies", env: append(env, "PIP_NO_CACHE_DIR=1"), // wheels only: none of their code runs
		args: append([]string{"python3", "-m", "pip", "install", "--no-index", "--find-links", from, "--no-compile", "--no-warn-script-location", "--target", at.out}, locked...),
	})
	return j, nil
}

var pin = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(\[[^\]]*\])?\s*==\s*[^\s;*]+(\s|$)`)

// checkPins says which line of a requirements.txt pins nothing. That hashes are there, pip
// itself insists on; what is checked here is what it would obey before it does.
func checkPins(data []byte) error {
	s := bufio.NewScanner(bytes.NewReader(data))
	continued := false
	for number := 1; s.Scan(); number++ {
		line := strings.TrimSpace(s.Text())
		inside := continued
		continued = strings.HasSuffix(line, `\`)
		if inside || line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !pin.MatchString(line) {
			return fail(ReasonNotLocked, "run pip-compile --generate-hashes", "%s:%d: %q is no pinned version", requirements, number, line)
		}
	}
	return s.Err()
}

// pythonFiles are the module's own: what lies in src/, where there is one, with the
// __main__.py that runs it, by the convention of Python's zipapp.
func pythonFiles(src source, p pyproject) (own []archive.Entry, start []string, unclear string, err error) {
	for _, name := range slices.Sorted(maps.Keys(src)) {
		e := src[name]
		if src.beneath("src") {
			inside, ok := strings.CutPrefix(name, "src/")
			if !ok {
				continue
			}
			e.Name = inside
		}
		if !strings.HasPrefix(name, wheels+"/") {
			own = append(own, e)
		}
	}
	start = []string{"python3", "/" + AppDirectory}
	if slices.ContainsFunc(own, func(e archive.Entry) bool { return e.Name == mainFile }) {
		return own, start, "", nil
	}
	switch len(p.Project.Scripts) {
	case 0:
		return own, nil, "there is no " + mainFile + ", and pyproject.toml names no script", nil
	case 1:
	default:
		return own, nil, "pyproject.toml names several scripts", nil
	}
	for name, target := range p.Project.Scripts {
		made, err := mainOf(target)
		if err != nil {
			return nil, nil, "", fail(ReasonSource, "", "pyproject.toml: script %s: %w", name, err)
		}
		own = append(own, text(mainFile, made))
	}
	return own, start, "", nil
}

var entryPoint = regexp.MustCompile(`^([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)$`)

func mainOf(target string) (string, error) {
	m := entryPoint.FindStringSubmatch(strings.TrimSpace(target))
	if m == nil {
		return "", fmt.Errorf("%q is not module:function", target)
	}
	return "import sys\nimport " + m[1] + "\n\nsys.exit(" + m[1] + "." + m[2] + "())\n", nil
}

// leftByPip names what pip leaves that depends on where it ran: programs that start with
// the path of its Python, and the list that has their hashes.
func leftByPip(name string) bool {
	return strings.HasPrefix(name, "bin/") || strings.HasSuffix(name, ".dist-info/RECORD") || strings.Contains("/"+name, "/__pycache__/")
}

// beside puts dependencies beside the module's own files, which they must not replace.
func beside(own, dependencies []archive.Entry) ([]archive.Entry, error) {
	taken := map[string]bool{}
	for _, e := range own {
		taken[e.Name] = true
	}
	for _, e := range dependencies {
		if taken[e.Name] {
			return nil, fail(ReasonSource, "rename the module's own", "%s is brought by a dependency too", e.Name)
		}
	}
	return slices.Concat(own, dependencies), nil
}
