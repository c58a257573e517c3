package toolchain

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/mesh-control/mesh/builder/archive"
)

// Component is a part that a bundle was made of and that its module did not write.
type Component struct {
	Type      string // of a package URL: golang, npm, cargo, pypi
	Namespace string
	Name      string
	Version   string
	SHA256    string // hex; "" where nothing pins it, or several files may be it
	SHA512    string // hex
	BuildOnly bool   // used while building, and not in the bundle
}

// Components lists what a bundle was made of, each part once, in the order of their names: of
// Go by what the compiler wrote into the programs, of the others by what locks them.
func Components(language string, files []archive.Entry, p Product) ([]Component, error) {
	found, err := languages[language].components(newSource(files), p)
	if err != nil {
		return nil, err
	}
	// What is shipped stands before the same part used for building, and is the one kept.
	slices.SortFunc(found, func(a, b Component) int {
		return cmp.Or(strings.Compare(a.key(), b.key()), strings.Compare(fmt.Sprint(a.BuildOnly), fmt.Sprint(b.BuildOnly)))
	})
	return slices.CompactFunc(found, func(a, b Component) bool { return a.key() == b.key() }), nil
}

func (c Component) key() string {
	return strings.Join([]string{c.Type, c.Namespace, c.Name, c.Version}, "\x00")
}

// goComponents reads what each program says of itself.
func goComponents(_ source, p Product) ([]Component, error) {
	var found []Component
	for _, e := range p.Entries {
		info, err := readBuildInfo(e)
		if err != nil {
			return nil, fmt.Errorf("read which modules are in %s: %w", e.Name, err)
		}
		found = append(found, Component{Type: "golang", Name: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")})
		for _, m := range info.Deps {
			at, version, sum := m.Path, m.Version, m.Sum
			if m.Replace != nil {
				version, sum = m.Replace.Version, m.Replace.Sum
				if version != "" { // a directory of the source has none, and no name of its own
					at = m.Replace.Path
				}
			}
			namespace, name := path.Split(at)
			found = append(found, Component{
				Type: "golang", Namespace: strings.TrimSuffix(namespace, "/"), Name: name, Version: version, SHA256: decoded(sum, "h1:"),
			})
		}
	}
	return found, nil
}

func readBuildInfo(e archive.Entry) (*buildinfo.BuildInfo, error) {
	r, err := e.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	at, ok := r.(io.ReaderAt) // as files are
	if !ok {
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		at = bytes.NewReader(data)
	}
	return buildinfo.Read(at)
}

// decoded gives a base64 hash with a prefix in hex, or "" of another kind.
func decoded(text, prefix string) string {
	encoded, ok := strings.CutPrefix(text, prefix)
	sum, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil {
		return ""
	}
	return hex.EncodeToString(sum)
}

// nodeComponents lists what the lock file has. Where a script builds, development packages are
// part of what made the bundle.
func nodeComponents(src source, _ Product) ([]Component, error) {
	name := lockFile(src)
	if !src.has(name) {
		return nil, nil
	}
	var p packageJSON
	var lock packageLock
	if err := decode(src, "package.json", &p); err != nil {
		return nil, err
	}
	if err := decode(src, name, &lock); err != nil {
		return nil, err
	}
	var found []Component
	for _, at := range slices.Sorted(maps.Keys(lock.Packages)) {
		entry := lock.Packages[at]
		_, full, dependency := cutLast(at, "node_modules/")
		if !dependency || entry.Link || entry.Development && p.Scripts["build"] == "" {
			continue
		}
		if entry.Name != "" { // an alias
			full = entry.Name
		}
		namespace, base := path.Split(full)
		c := Component{Type: "npm", Namespace: strings.TrimSuffix(namespace, "/"), Name: base, Version: entry.Version, BuildOnly: entry.Development}
		for one := range strings.FieldsSeq(entry.Integrity) {
			c.SHA512, c.SHA256 = max(c.SHA512, decoded(one, "sha512-")), max(c.SHA256, decoded(one, "sha256-"))
		}
		found = append(found, c)
	}
	return found, nil
}

func cutLast(text, separator string) (before, after string, ok bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}

// cargoLock is what is read of a Cargo.lock.
type cargoLock struct {
	Package []struct {
		Name     string `toml:"name"`
		Version  string `toml:"version"`
		Source   string `toml:"source"` // none of the workspace's own crates
		Checksum string `toml:"checksum"`
	} `toml:"package"`
}

func rustComponents(src source, _ Product) ([]Component, error) {
	data, err := src.read("Cargo.lock")
	if err != nil {
		return nil, err
	}
	var lock cargoLock
	if err := toml.Unmarshal(data, &lock); err != nil {
		return nil, fail(ReasonSource, "run cargo generate-lockfile and commit Cargo.lock", "read Cargo.lock: %w", err)
	}
	var found []Component
	for _, p := range lock.Package {
		if p.Source != "" {
			found = append(found, Component{Type: "cargo", Name: p.Name, Version: p.Version, SHA256: p.Checksum})
		}
	}
	return found, nil
}

var (
	pinned     = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;*\\]+)`)
	pinnedHash = regexp.MustCompile(`--hash=sha256:([0-9a-fA-F]{64})`)
)

// pythonComponents lists the pins. Each may have the hashes of several files, for one platform
// each; only where there is one is it known which was taken.
func pythonComponents(src source, _ Product) ([]Component, error) {
	data, err := src.read(requirements)
	if err != nil {
		return nil, err
	}
	var found []Component
	for line := range logicalLines(data) {
		match := pinned.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		c := Component{Type: "pypi", Name: strings.ToLower(match[1]), Version: match[2]}
		if hashes := pinnedHash.FindAllStringSubmatch(line, -1); len(hashes) == 1 {
			c.SHA256 = strings.ToLower(hashes[0][1])
		}
		found = append(found, c)
	}
	return found, nil
}

// logicalLines gives the lines of a requirements.txt with their continuations.
func logicalLines(data []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		whole := ""
		for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
			line, continued := strings.CutSuffix(strings.TrimSpace(s.Text()), `\`)
			whole += line
			if continued {
				continue
			}
			if !yield(whole) {
				return
			}
			whole = ""
		}
		if whole != "" {
			yield(whole)
		}
	}
}
