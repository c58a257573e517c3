package schema

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

type jsonKind = jsontext.Kind

// The fields each type of resource has beside id, type and after. What a resource carries
// (artifact, or source, digest, image, sealed) differs by document: see carried.
var resourceFields = map[string][]string{
	TypeDirectory: {"path", "mode", "owner"},
	TypeFile:      {"path", "mode", "owner", "content"},
	TypeArchive:   {"path", "strip"},
	TypeContainer: {"command", "entrypoint", "env", "env-files", "mounts", "ports", "networks", "devices",
		"limits", "user", "capabilities", "read-only", "restart", "stop-signal", "stop-timeout", "health", "labels"},
	TypeService: {"exec", "args", "env", "user", "directory", "restart", "restart-on", "stop-signal", "stop-timeout", "health"},
}

// carried is what a resource of a type carries in a document beside its ordinary fields.
func carried(doc document, kind string) []string {
	switch {
	case doc == documentModule && (kind == TypeArchive || kind == TypeContainer):
		return []string{"artifact"}
	case doc != documentModule && kind == TypeArchive:
		return []string{"source", "digest"}
	case doc != documentModule && kind == TypeContainer:
		return []string{"image"}
	case doc == documentDeclaration && kind == TypeFile:
		return []string{"sealed"}
	}
	return nil
}

// The fields each kind of artifact has beside kind.
var artifactFields = map[string][]string{
	KindImage:    {"dockerfile", "context", "args"},
	KindBundle:   {"path", "language", "package", "base", "entrypoint"},
	KindArchive:  {"path"},
	KindUpstream: {"reference", "platforms"},
}

var (
	resourceTypes = []string{TypeDirectory, TypeFile, TypeArchive, TypeContainer, TypeService}
	artifactKinds = []string{KindImage, KindBundle, KindArchive, KindUpstream}
)

// renames is the table of old names: per type, old to new.
var renames = map[reflect.Type]map[string]string{
	reflect.TypeFor[Module](): {"needs": "own-secrets"},
}

// hints name the field a stranger most likely means when spelling gives no clue.
var hints = map[reflect.Type]map[string]string{
	reflect.TypeFor[Artifact](): {"type": "kind", "image": "reference", "directory": "path"},
	reflect.TypeFor[Resource](): {"kind": "type", "name": "id", "volumes": "mounts", "environment": "env",
		"depends-on": "after", "depends_on": "after", "dependsOn": "after", "healthcheck": "health"},
	reflect.TypeFor[Module](): {"dependencies": "requires", "depends": "requires", "secret": "own-secrets"},
}

// fieldSet is what one object may hold, given its type or kind and its document.
type fieldSet struct {
	doc     document
	goType  reflect.Type
	noun    string   // "a container"
	kind    string   // the discriminator's value
	allowed []string // names in order
}

// fields finds what an object may hold, refusing a type or kind that is not one.
func (c *checker) fields(n *node, s *shape, path string, doc document) fieldSet {
	set := fieldSet{doc: doc, goType: s.goType, noun: s.noun, allowed: s.names}
	switch s.goType {
	case reflect.TypeFor[Resource]():
		set.kind = c.discriminator(n, path, "type", "type of resource", resourceTypes)
		if set.kind == "" {
			return set
		}
		set.noun = withArticle(set.kind)
		set.allowed = slices.Concat([]string{"id", "type", "after"}, carried(doc, set.kind), resourceFields[set.kind])
	case reflect.TypeFor[Artifact]():
		set.kind = c.discriminator(n, path, "kind", "kind of artifact", artifactKinds)
		if set.kind == "" {
			return set
		}
		set.noun = withArticle(set.kind) + " artifact"
		set.allowed = append([]string{"kind"}, artifactFields[set.kind]...)
	}
	return set
}

func (c *checker) discriminator(n *node, path, field, what string, values []string) string {
	d := n.member(field)
	if d == nil {
		c.found.add(n.start, joinPath(path, field), "missing; it says which %s this is: %s", what, orList(values))
		return ""
	}
	if d.kind != '"' {
		return "" // told by the shape of the field itself
	}
	if !slices.Contains(values, d.text) {
		hint := ""
		if near := nearest(d.text, values); near != "" {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		c.found.add(d.start, joinPath(path, field), "%s is no %s: it is one of %s%s", quote(d.text), what, orList(values), hint)
		d.dropped = true
		return ""
	}
	return d.text
}

// refusal says why a field is not one, and what to write instead.
func (f fieldSet) refusal(name string) string {
	if renamed := renames[f.goType][name]; renamed != "" {
		return fmt.Sprintf("is called %q now; rename it", renamed)
	}
	if f.goType == reflect.TypeFor[Resource]() {
		if told := f.carriedElsewhere(name); told != "" {
			return told
		}
	}
	for _, field := range f.allowed {
		if strings.EqualFold(field, name) {
			return fmt.Sprintf("not a field of %s: names are case-sensitive, write %q", f.noun, field)
		}
	}
	message := "not a field of " + f.noun
	if owners := f.owners(name); len(owners) > 0 {
		message += fmt.Sprintf(" (%s)", orAnd(owners))
	}
	if hint := hints[f.goType][name]; hint != "" && slices.Contains(f.allowed, hint) {
		return message + fmt.Sprintf("; did you mean %q?", hint)
	}
	if near := nearest(name, f.allowed); near != "" {
		return message + fmt.Sprintf("; did you mean %q?", near)
	}
	if len(f.allowed) <= 12 {
		return message + "; it has " + strings.Join(f.allowed, ", ")
	}
	return message
}

// carriedElsewhere answers the fields that say what a resource carries in another document.
func (f fieldSet) carriedElsewhere(name string) string {
	switch {
	case f.doc == documentModule && slices.Contains([]string{"source", "digest", "image"}, name):
		return fmt.Sprintf("module.json cannot carry %q: what is built has no digest yet; name it with \"artifact\", and the built manifest carries the rest", name)
	case f.doc == documentModule && name == "sealed":
		return `module.json cannot carry "sealed": secrets are declared under "secrets" and "own-secrets", and sealed for each node`
	case f.doc == documentManifest && name == "sealed":
		return `a manifest cannot carry "sealed": secrets are sealed for each node, in its declaration`
	case f.doc != documentModule && name == "artifact":
		return artifactLeft(f.doc)
	}
	return ""
}

func artifactLeft(doc document) string {
	return fmt.Sprintf("%s must not carry \"artifact\": every artifact is replaced by its digest when it is built", nouns[documentTypes[doc]])
}

// owners names the other types that do have the field.
func (f fieldSet) owners(name string) []string {
	var table map[string][]string
	var order []string
	switch f.goType {
	case reflect.TypeFor[Resource]():
		table, order = resourceFields, resourceTypes
	case reflect.TypeFor[Artifact]():
		table, order = artifactFields, artifactKinds
	}
	var owners []string
	for _, kind := range order {
		if kind != f.kind && slices.Contains(table[kind], name) {
			owners = append(owners, plural(kind))
		}
	}
	return owners
}

func plural(kind string) string {
	if kind == TypeDirectory {
		return "directories"
	}
	return kind + "s"
}

func withArticle(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

func orList(values []string) string {
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}

func orAnd(owners []string) string {
	if len(owners) == 1 {
		return owners[0] + " have it"
	}
	return strings.Join(owners[:len(owners)-1], ", ") + " and " + owners[len(owners)-1] + " have it"
}

// nearest is the candidate within a third of the name's length in edits, or one that the
// name starts with or is the start of; "" when none is near.
func nearest(name string, candidates []string) string {
	if len(name) > 64 {
		return ""
	}
	folded := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	best, least := "", len(folded)/3+1
	for _, candidate := range candidates {
		if d := distance(folded, strings.ToLower(candidate)); d < least {
			best, least = candidate, d
		}
	}
	if best != "" {
		return best
	}
	for _, candidate := range candidates {
		if len(candidate) >= 4 && strings.HasPrefix(folded, candidate+"-") || len(folded) >= 4 && strings.HasPrefix(candidate, folded) {
			return candidate
		}
	}
	return ""
}

// distance counts the edits (insert, delete, replace, swap neighbours) between two names.
func distance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := above[j]
			if a[i] != b[j] {
				cost++
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cost = min(cost, before[j-1]+1)
			}
			row[j+1] = min(cost, above[j+1]+1, row[j]+1)
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}

// sortedKeys gives a map's keys in order, so that errors come in one order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
