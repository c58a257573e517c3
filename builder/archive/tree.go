package archive

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxLinks is how many links a resolution may pass through, as in the kernel.
const maxLinks = 40

// tree is what an archive would make, kept by name to check each entry against the others.
type tree struct {
	kinds   map[string]Kind
	stated  map[string]bool   // named by an entry of its own, not only implied
	folded  map[string]string // case-folded name to the name that took it
	targets map[string]string
}

func newTree() *tree {
	return &tree{kinds: map[string]Kind{}, stated: map[string]bool{}, folded: map[string]string{}, targets: map[string]string{}}
}

// badName says what is wrong with an entry's name, or "".
func badName(name string) string {
	switch {
	case name == "" || name == ".":
		return "is not a name"
	case strings.HasPrefix(name, "/"):
		return "is an absolute name"
	case strings.ContainsRune(name, 0):
		return "contains a NUL byte"
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	case slices.Contains(strings.Split(name, "/"), ".."):
		return `contains ".."`
	}
	return ""
}

// add records a clean name. With caseless set, names that differ only in case are refused.
func (t *tree) add(name string, kind Kind, target string, caseless bool) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if k, ok := t.kinds[dir]; ok && k != Directory {
			return refuse(name, "lies beneath %q, which is not a directory", dir)
		}
		if err := t.note(dir, Directory, caseless); err != nil {
			return err
		}
	}
	if had, ok := t.kinds[name]; ok && (had != Directory || kind != Directory || t.stated[name]) {
		return refuse(name, "appears twice")
	}
	if err := t.note(name, kind, caseless); err != nil {
		return err
	}
	t.stated[name] = true
	if kind == Link {
		t.targets[name] = target
	}
	return nil
}

func (t *tree) note(name string, kind Kind, caseless bool) error {
	if caseless {
		folded := strings.ToLower(strings.ToUpper(name))
		if other, ok := t.folded[folded]; ok && other != name {
			return refuse(name, "differs only in case from %q", other)
		}
		t.folded[folded] = name
	}
	t.kinds[name] = kind
	return nil
}

// checkLinks resolves every link through all others and refuses one that leaves.
func (t *tree) checkLinks() error {
	for _, name := range sortedKeys(t.targets) {
		target := t.targets[name]
		switch {
		case target == "":
			return refuse(name, "is a link to nothing")
		case strings.HasPrefix(target, "/"):
			return refuse(name, "is a link to the absolute path %q", target)
		case strings.ContainsRune(target, 0):
			return refuse(name, "is a link whose target contains a NUL byte")
		}
		if why := t.resolve(name); why != "" {
			return refuse(name, "is a link to %q, which %s", target, why)
		}
	}
	return nil
}

// resolve follows the link the way the kernel would and says what is wrong, or "". A
// dangling link that stays inside is fine.
func (t *tree) resolve(name string) string {
	var at []string // where resolution stands, a directory
	if dir := path.Dir(name); dir != "." {
		at = strings.Split(dir, "/")
	}
	todo := strings.Split(t.targets[name], "/")
	for followed := 1; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return "leads outside"
			}
			at = at[:len(at)-1]
			continue
		}
		here := strings.Join(append(slices.Clone(at), part), "/")
		target, link := t.targets[here]
		if !link {
			at = append(at, part)
			continue
		}
		if followed++; followed > maxLinks {
			return "never ends"
		}
		if strings.HasPrefix(target, "/") {
			return "leads outside"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return ""
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
