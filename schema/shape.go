package schema

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// A shape says which fields an object has and of what JSON kind each is. It is read off
// the Go types, so that a field cannot be decoded without being known here; the values
// allowed inside are CUE's matter.
type shape struct {
	kind   shapeKind
	noun   string            // "an artifact"
	fields map[string]*shape // of an object
	names  []string          // its fields in order
	elem   *shape            // of a list or map
	short  bool              // a bare string stands for the object
	empty  bool              // null is read as empty: a list or map Go may leave nil
	goType reflect.Type
}

type shapeKind int

const (
	shapeAny shapeKind = iota
	shapeObject
	shapeMap
	shapeList
	shapeString
	shapeInteger
	shapeNumber
	shapeBoolean
)

func (k shapeKind) String() string {
	return [...]string{"any value", "an object", "an object", "a list", "a string", "an integer", "a number", "true or false"}[k]
}

var nouns = map[reflect.Type]string{
	reflect.TypeFor[Module]():          "module.json",
	reflect.TypeFor[Manifest]():        "a manifest",
	reflect.TypeFor[Declaration]():     "a declaration",
	reflect.TypeFor[Job]():             "a job",
	reflect.TypeFor[Result]():          "a result",
	reflect.TypeFor[Report]():          "a report",
	reflect.TypeFor[Provision]():       "a provision",
	reflect.TypeFor[Requirement]():     "a requirement",
	reflect.TypeFor[Claim]():           "a claim",
	reflect.TypeFor[Setting]():         "a setting",
	reflect.TypeFor[Artifact]():        "an artifact",
	reflect.TypeFor[OwnSecret]():       "an own secret",
	reflect.TypeFor[Resource]():        "a resource",
	reflect.TypeFor[Mount]():           "a mount",
	reflect.TypeFor[Port]():            "a port",
	reflect.TypeFor[Limits]():          "limits",
	reflect.TypeFor[Health]():          "a health check",
	reflect.TypeFor[Sealed]():          "a sealed value",
	reflect.TypeFor[Source]():          "a source",
	reflect.TypeFor[Built]():           "a built artifact",
	reflect.TypeFor[BuiltUpstream]():   "an upstream record",
	reflect.TypeFor[HostSection]():     "the host section",
	reflect.TypeFor[DeviceSection]():   "the device section",
	reflect.TypeFor[SiteSection]():     "the site section",
	reflect.TypeFor[CurrentManifest](): "the current manifest",
	reflect.TypeFor[PhaseTime]():       "a phase",
	reflect.TypeFor[BuildError]():      "a build error",
	reflect.TypeFor[ResourceStatus]():  "a resource's status",
	reflect.TypeFor[Agent]():           "the agent",
}

// shapeOf reads a type's shape, once per type.
func shapeOf(t reflect.Type, known map[reflect.Type]*shape) *shape {
	if s := known[t]; s != nil {
		return s
	}
	s := &shape{goType: t}
	known[t] = s
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return s
	case t == reflect.TypeFor[time.Time](), t == reflect.TypeFor[[]byte]():
		s.kind = shapeString
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		delete(known, t)
		return shapeOf(t.Elem(), known)
	case reflect.String:
		s.kind = shapeString
	case reflect.Bool:
		s.kind = shapeBoolean
	case reflect.Int, reflect.Int64:
		s.kind = shapeInteger
	case reflect.Float64:
		s.kind = shapeNumber
	case reflect.Slice:
		s.kind, s.elem = shapeList, shapeOf(t.Elem(), known)
	case reflect.Map:
		s.kind, s.elem = shapeMap, shapeOf(t.Elem(), known)
	case reflect.Struct:
		s.kind, s.noun = shapeObject, nouns[t]
		s.short = t == reflect.TypeFor[Requirement]() || t == reflect.TypeFor[Claim]() || t == reflect.TypeFor[OwnSecret]()
		s.fields = make(map[string]*shape)
		for field := range t.Fields() {
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			below := shapeOf(field.Type, known)
			if !strings.Contains(options, "omit") && (below.kind == shapeList || below.kind == shapeMap) {
				copied := *below
				copied.empty = true
				below = &copied
			}
			s.fields[name] = below
			s.names = append(s.names, name)
		}
	default:
		panic(fmt.Sprintf("schema: no shape for %s", t))
	}
	return s
}

// shapes holds the shape of every document, made at the first parse.
var shapes = sync.OnceValue(func() map[document]*shape {
	known := make(map[reflect.Type]*shape)
	return map[document]*shape{
		documentModule:      shapeOf(reflect.TypeFor[Module](), known),
		documentManifest:    shapeOf(reflect.TypeFor[Manifest](), known),
		documentDeclaration: shapeOf(reflect.TypeFor[Declaration](), known),
		documentJob:         shapeOf(reflect.TypeFor[Job](), known),
		documentResult:      shapeOf(reflect.TypeFor[Result](), known),
		documentReport:      shapeOf(reflect.TypeFor[Report](), known),
	}
})

// checker carries one document through the steps.
type checker struct {
	document document
	found    *findings
	root     *node
	engine   *engine // lent while values are checked
	refused  string  // what CUE said last, should nothing better be found
}

// shape checks a value's kind and an object's field names, all the way down. What it
// refuses is dropped from the tree.
func (c *checker) shape(n *node, s *shape, path string, doc document) {
	if n.dropped || s.kind == shapeAny {
		return
	}
	if !c.kind(n, s, path) {
		n.dropped = true
		return
	}
	switch {
	case n.kind == '[':
		for i, child := range n.children {
			c.shape(child, s.elem, joinPath(path, i), doc)
		}
	case s.kind == shapeMap && n.kind == '{':
		for _, child := range n.children {
			c.shape(child, s.elem, joinPath(path, child.key), doc)
		}
	case s.kind == shapeObject && n.kind == '{':
		if s.goType == reflect.TypeFor[Manifest]() {
			doc = documentManifest
		}
		fields := c.fields(n, s, path, doc)
		for _, child := range n.children {
			if child.dropped {
				continue
			}
			below := joinPath(path, child.key)
			if !slices.Contains(fields.allowed, child.key) {
				c.found.add(child.keyStart, below, "%s", fields.refusal(child.key))
				child.dropped = true
				continue
			}
			c.shape(child, s.fields[child.key], below, doc)
		}
	}
}

// kind says whether the value is of the shape's JSON kind, and tells when not.
func (c *checker) kind(n *node, s *shape, path string) bool {
	want := s.kind.String()
	ok := false
	switch s.kind {
	case shapeObject:
		ok = n.kind == '{' || s.short && n.kind == '"'
		if s.short {
			want = "a string or an object"
		}
	case shapeMap:
		ok = n.kind == '{'
	case shapeList:
		ok = n.kind == '['
	case shapeString:
		ok = n.kind == '"'
	case shapeBoolean:
		ok = n.kind == 't' || n.kind == 'f'
	case shapeNumber:
		ok = n.kind == '0'
	case shapeInteger:
		ok = n.kind == '0' && !strings.ContainsAny(n.text, ".eE")
		if n.kind == '0' && !ok {
			c.found.add(n.start, path, "must be an integer, not %s", clip(n.text))
			return false
		}
	}
	if ok && s.goType == reflect.TypeFor[time.Time]() {
		if err := new(time.Time).UnmarshalText([]byte(n.text)); err != nil {
			c.found.add(n.start, path, "must be a time such as 2026-01-31T12:00:00Z, not %s", quote(n.text))
			return false
		}
	}
	if ok && s.goType == reflect.TypeFor[[]byte]() {
		if _, err := base64.StdEncoding.Strict().DecodeString(n.text); err != nil || strings.ContainsAny(n.text, "\r\n") {
			c.found.add(n.start, path, "must be base64")
			return false
		}
	}
	if n.kind == 'n' && s.empty {
		n.kind = map[shapeKind]jsonKind{shapeList: '[', shapeMap: '{'}[s.kind]
		return true
	}
	if !ok {
		got := kindName(n.kind)
		if n.kind == 't' || n.kind == 'f' {
			got = map[jsonKind]string{'t': "true", 'f': "false"}[n.kind]
		}
		c.found.add(n.start, path, "must be %s, not %s", want, got)
	}
	return ok
}
