package schema

import (
	"embed"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

//go:embed *.cue
var definitionFiles embed.FS

// definitionNames are the embedded files.
var definitionNames = []string{"names.cue", "module.cue", "manifest.cue", "declaration.cue", "job.cue", "report.cue"}

// engine is one CUE context with the definitions compiled. A context is not safe for
// concurrent use and keeps every label it has ever seen, so engines are lent to one parse
// at a time and retired after engineUses documents: memory stays flat however many pass.
type engine struct {
	ctx    *cue.Context
	root   cue.Value
	byName map[string]cue.Value
	uses   int
}

const engineUses = 2000

// engines keeps idle engines, one per processor at most.
var engines = sync.OnceValue(func() chan *engine { return make(chan *engine, runtime.GOMAXPROCS(0)) })

func borrowEngine() *engine {
	select {
	case e := <-engines():
		return e
	default:
		return newEngine()
	}
}

func (e *engine) giveBack() {
	if e.uses++; e.uses >= engineUses {
		return
	}
	select {
	case engines() <- e:
	default:
	}
}

func newEngine() *engine {
	ctx := cuecontext.New()
	instance := build.NewContext().NewInstance("", nil)
	for _, name := range definitionNames {
		text, err := definitionFiles.ReadFile(name)
		if err == nil {
			err = addFile(instance, name, text)
		}
		if err != nil {
			panic(fmt.Sprintf("schema: definitions in %s: %v", name, err))
		}
	}
	root := ctx.BuildInstance(instance)
	if err := root.Err(); err != nil {
		panic(fmt.Sprintf("schema: definitions: %v", err))
	}
	return &engine{ctx: ctx, root: root, byName: make(map[string]cue.Value)}
}

func addFile(instance *build.Instance, name string, text []byte) error {
	file, err := parser.ParseFile(name, text, parser.ParseComments)
	if err != nil {
		return err
	}
	if err := instance.AddSyntax(file); err != nil {
		return err
	}
	return nil
}

func (e *engine) definition(name string) cue.Value {
	v, ok := e.byName[name]
	if !ok {
		v = e.root.LookupPath(cue.MakePath(cue.Def(name)))
		if err := v.Err(); err != nil {
			panic(fmt.Sprintf("schema: definition #%s: %v", name, err))
		}
		e.byName[name] = v
	}
	return v
}

// values checks every object against its own CUE definition. Dispatching by type and kind
// here, rather than by disjunctions there, is faster and gives errors with a place.
func (c *checker) values() {
	if c.root.dropped {
		return
	}
	c.engine = borrowEngine()
	defer func() { c.engine.giveBack(); c.engine = nil }()
	c.value(c.root, shapes()[c.document], "", c.document)
}

// ownDefinition are the types whose values are checked one by one.
var ownDefinition = map[reflect.Type]bool{
	reflect.TypeFor[Manifest](): true, reflect.TypeFor[Resource](): true, reflect.TypeFor[Artifact](): true,
	reflect.TypeFor[Requirement](): true, reflect.TypeFor[Claim](): true, reflect.TypeFor[OwnSecret](): true,
}

// definitionOf picks the definition for an object, "" when it does not say what it is.
func definitionOf(n *node, s *shape, doc document) string {
	switch s.goType {
	case reflect.TypeFor[Resource]():
		kind := n.member("type")
		if kind == nil {
			return ""
		}
		variant := doc == documentModule
		switch kind.text {
		case TypeDirectory:
			return "Directory"
		case TypeFile:
			if doc != documentDeclaration {
				return "ModuleFile"
			}
			return "File"
		case TypeArchive:
			return map[bool]string{true: "ModuleArchive", false: "Archive"}[variant]
		case TypeContainer:
			return map[bool]string{true: "ModuleContainer", false: "Container"}[variant]
		case TypeService:
			return "Service"
		}
		return ""
	case reflect.TypeFor[Artifact]():
		if kind := n.member("kind"); kind != nil {
			return map[string]string{KindImage: "Image", KindBundle: "Bundle",
				KindArchive: "ArchiveArtifact", KindUpstream: "UpstreamArtifact"}[kind.text]
		}
		return ""
	case reflect.TypeFor[Claim]():
		switch {
		case n.kind == '"' || n.member("role") != nil:
			return "RoleClaim"
		case n.member("port") != nil:
			return "PortClaim"
		case n.member("device") != nil:
			return "DeviceClaim"
		}
		return ""
	}
	return s.goType.Name()
}

// value checks one object with a definition of its own, then those inside it.
func (c *checker) value(n *node, s *shape, path string, doc document) {
	if s.goType == reflect.TypeFor[Manifest]() {
		doc = documentManifest
	}
	var inside []func()
	expr := c.expr(n, s, path, doc, &inside, true)
	if name := definitionOf(n, s, doc); name != "" {
		definition := c.engine.definition(name)
		err := c.engine.ctx.BuildExpr(expr).Unify(definition).Validate(cue.Concrete(true), cue.All())
		if err != nil {
			c.refused = clip(err.Error())
			for _, one := range cueerrors.Errors(err) {
				c.valueError(one, n, path, definition)
			}
			c.missing(n, s, path, definition)
		}
	}
	for _, check := range inside {
		check()
	}
}

// missing tells the required fields an object lacks: CUE does not, once a value is wrong.
func (c *checker) missing(n *node, s *shape, path string, definition cue.Value) {
	if s.kind == shapeObject && n.kind == '{' {
		fields, err := definition.Fields(cue.Optional(true))
		if err != nil {
			return
		}
		for fields.Next() {
			name := fields.Selector().Unquoted()
			if fields.FieldType()&cue.RequiredConstraint == 0 || slices.ContainsFunc(n.children, func(child *node) bool { return meant(child, name) }) {
				continue
			}
			message := "missing"
			if wanted := expectation(fields.Value()); wanted != "" {
				message += "; it must be " + wanted
			}
			c.found.add(n.start, joinPath(path, name), "%s", message)
		}
	}
	for i, child := range n.children {
		inner, step := s.elem, any(i)
		if n.kind == '{' {
			step = child.key
		}
		if s.kind == shapeObject {
			inner = s.fields[child.key]
		}
		if child.dropped || inner == nil || ownDefinition[inner.goType] {
			continue
		}
		if next, badKey := below(definition, step); !badKey {
			c.missing(child, inner, joinPath(path, step), next)
		}
	}
}

// meant says whether a field is there, or was refused for a spelling or a form of it.
func meant(child *node, name string) bool {
	if child.key == name {
		return true
	}
	carries := []string{"artifact", "source", "digest", "image", "sealed", "content"}
	return child.dropped && (nearest(child.key, []string{name}) != "" ||
		slices.Contains(carries, child.key) && slices.Contains(carries, name))
}

// expr gives a value as CUE, leaving out what was refused and what is checked by itself.
func (c *checker) expr(n *node, s *shape, path string, doc document, inside *[]func(), top bool) ast.Expr {
	if !top && ownDefinition[s.goType] {
		*inside = append(*inside, func() { c.value(n, s, path, doc) })
		return nil
	}
	switch n.kind {
	case '"':
		if s.kind == shapeObject && s.short {
			return ast.NewStruct(&ast.Field{Label: ast.NewString(s.names[0]), Value: ast.NewString(n.text)})
		}
		return ast.NewString(n.text)
	case '0':
		return number(n.text)
	case 't', 'f':
		return ast.NewBool(n.kind == 't')
	case '[':
		list := &ast.ListLit{}
		if s.kind == shapeAny {
			return list
		}
		for i, child := range n.children {
			if child.dropped {
				list.Elts = append(list.Elts, ast.NewIdent("_"))
			} else if e := c.expr(child, s.elem, joinPath(path, i), doc, inside, false); e != nil {
				list.Elts = append(list.Elts, e)
			}
		}
		return list
	case '{':
		object := &ast.StructLit{}
		if s.kind == shapeAny {
			return object
		}
		for _, child := range n.children {
			below := s.elem
			if s.kind == shapeObject {
				below = s.fields[child.key]
			}
			if child.dropped || below == nil {
				continue
			}
			if e := c.expr(child, below, joinPath(path, child.key), doc, inside, false); e != nil {
				object.Elts = append(object.Elts, &ast.Field{Label: ast.NewString(child.key), Value: e})
			}
		}
		return object
	}
	return ast.NewNull()
}

func number(text string) ast.Expr {
	digits, negative := strings.CutPrefix(text, "-")
	kind := token.INT
	if strings.ContainsAny(digits, ".eE") {
		// Through float64, as every reader of JSON sees it: exponents stay small.
		kind = token.FLOAT
		value, _ := strconv.ParseFloat(digits, 64)
		digits = strconv.FormatFloat(value, 'e', -1, 64)
	}
	var e ast.Expr = ast.NewLit(kind, digits)
	if negative {
		e = &ast.UnaryExpr{Op: token.SUB, X: e}
	}
	return e
}

// valueError tells one of CUE's errors in the words of the definition's @expect, at the
// place in the text the value came from.
func (c *checker) valueError(err cueerrors.Error, base *node, path string, definition cue.Value) {
	at, constraint, whole, key := base, definition, true, false
	for _, label := range err.Path() {
		if unquoted, e := strconv.Unquote(label); e == nil {
			label = unquoted
		}
		var step any = label
		index, e := strconv.Atoi(label)
		if e == nil && at.kind == '[' {
			step = index
		}
		if at.kind != '"' { // else: the only field of a short form, which the text leaves out
			path = joinPath(path, step)
			if whole {
				at, whole = at.walk(step)
			}
		}
		if constraint, key = below(constraint, step); key {
			break // nothing is known of what is inside
		}
	}
	format, args := err.Msg()
	message := fmt.Sprintf(format, args...)
	wanted := expectation(constraint)
	switch {
	case !whole: // told by missing
	case key:
		if of := attribute(constraint, "key"); of != "" {
			c.found.add(at.keyStart, path, "%s is not %s", quote(at.key), of)
		}
	case wanted != "":
		c.found.add(at.start, path, "must be %s, not %s", wanted, shown(at))
	default:
		c.found.add(at.start, path, "%s", clip(message))
	}
}

// below follows a definition one step. badKey says that no field or pattern takes the name.
func below(v cue.Value, step any) (next cue.Value, badKey bool) {
	selectors := []cue.Selector{cue.AnyIndex}
	if name, ok := step.(string); ok {
		label := cue.Str(name)
		selectors = []cue.Selector{label.Required(), label.Optional(), label, cue.AnyString}
	}
	for _, selector := range selectors {
		if next = v.LookupPath(cue.MakePath(selector)); next.Exists() {
			return next, false
		}
	}
	return v, true
}

// expectation is the @expect of a field, or of the definition its value refers to.
func expectation(v cue.Value) string {
	if text := attribute(v, "expect"); text != "" {
		return text
	}
	if root, path := v.ReferencePath(); root.Exists() {
		return attribute(root.LookupPath(path), "expect")
	}
	return ""
}

// attribute is the text of @name("…") on a field, or nothing.
func attribute(v cue.Value, name string) string {
	found := v.Attribute(name)
	if found.Err() != nil {
		return ""
	}
	text, err := found.String(0)
	if err != nil {
		return ""
	}
	return text
}

// shown is a value as an error shows it: short, and never a secret's bytes.
func shown(n *node) string {
	switch n.kind {
	case '"':
		return quote(n.text)
	case '0':
		return clip(n.text)
	case 't':
		return "true"
	case 'f':
		return "false"
	}
	return kindName(n.kind)
}
