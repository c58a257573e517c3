package archive

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// What one archive may hold at most. A few small git trees that name each other over and over
// can stand for more names than there is memory.
const (
	MaxEntries = 1 << 20  // files, links and directories
	MaxNames   = 64 << 20 // bytes of their names and of links' targets
	MaxPath    = 4096     // bytes of one name
	maxName    = 255      // bytes between two slashes
)

// A link's resolution passes through as many links as in the kernel, and through as many names
// as anything but an attack has.
const (
	maxLinks = 40
	maxSteps = 1024
)

// Budget counts entries against what an archive may hold.
type Budget struct{ entries, bytes int }

// Take counts one entry, and says what is too much of it, or "".
func (b *Budget) Take(name, target string) string {
	b.entries++
	b.bytes += len(name) + len(target)
	switch {
	case len(name) > MaxPath || len(target) > MaxPath:
		return fmt.Sprintf("has a path of more than %d bytes", MaxPath)
	case b.entries > MaxEntries:
		return fmt.Sprintf("is one of more than %d files and directories", MaxEntries)
	case b.bytes > MaxNames:
		return fmt.Sprintf("is one of more names than fit %d MiB", MaxNames>>20)
	}
	return ""
}

// tree is what an archive would make, kept by name to check each entry against the others.
type tree struct {
	kinds   map[string]Kind
	stated  map[string]bool   // named by an entry of its own, not only implied
	folded  map[string]string // case-folded name to the name that took it
	targets map[string]string
	budget  Budget
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
	case slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return len(part) > maxName }):
		return fmt.Sprintf("has a component of more than %d bytes", maxName)
	}
	return ""
}

// add records a clean name. With caseless set, names that differ only in case are refused.
func (t *tree) add(name string, kind Kind, target string, caseless bool) error {
	if why := t.budget.Take(name, target); why != "" {
		return refuse(name, "%s", why)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		k, known := t.kinds[dir]
		if known && k != Directory {
			return refuse(name, "lies beneath %q, which is not a directory", dir)
		}
		if known { // and so are the directories it lies in
			break
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
	at := "" // where resolution stands, a directory
	if dir := path.Dir(name); dir != "." {
		at = dir
	}
	todo := strings.Split(t.targets[name], "/")
	for followed, steps := 1, 1; len(todo) > 0; steps++ {
		if steps > maxSteps {
			return "never ends"
		}
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "" {
				return "leads outside"
			}
			at = at[:max(strings.LastIndexByte(at, '/'), 0)]
			continue
		}
		here := part
		if at != "" {
			here = at + "/" + part
		}
		target, link := t.targets[here]
		if !link {
			at = here
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
