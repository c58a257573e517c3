package schema

import (
	"cmp"
	"reflect"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// document is which of the documents is being read.
type document int

const (
	documentModule document = iota
	documentManifest
	documentDeclaration
	documentJob
	documentResult
	documentReport
)

var documentTypes = [...]reflect.Type{
	reflect.TypeFor[Module](), reflect.TypeFor[Manifest](), reflect.TypeFor[Declaration](),
	reflect.TypeFor[Job](), reflect.TypeFor[Result](), reflect.TypeFor[Report](),
}

// ParseModule reads a module.json. file is how errors name it.
func ParseModule(file string, data []byte) (*Module, error) {
	return parse(file, data, documentModule, (*checker).module)
}

// ParseManifest reads a built manifest.
func ParseManifest(file string, data []byte) (*Manifest, error) {
	return parse(file, data, documentManifest, (*checker).manifest)
}

// ParseDeclaration reads a node's declaration. Hash and signature are not verified here.
func ParseDeclaration(file string, data []byte) (*Declaration, error) {
	return parse(file, data, documentDeclaration, (*checker).declaration)
}

// ParseJob reads a build request.
func ParseJob(file string, data []byte) (*Job, error) {
	return parse(file, data, documentJob, (func(*checker, *Job))(nil))
}

// ParseResult reads a build's result, and the manifest inside as strictly as by itself.
func ParseResult(file string, data []byte) (*Result, error) {
	return parse(file, data, documentResult, (*checker).result)
}

// ParseReport reads a host's report.
func ParseReport(file string, data []byte) (*Report, error) {
	return parse(file, data, documentReport, (func(*checker, *Report))(nil))
}

// parse is the pipeline: tokens, names, values, decoding, meaning. Each step sees only
// what the earlier ones let through, and the first to speak of a path is the one heard.
func parse[T any](file string, data []byte, doc document, meaning func(*checker, *T)) (*T, error) {
	limit := limits{maxDocumentBytes, maxItems}
	if doc == documentModule {
		limit = limits{maxModuleBytes, maxModuleItems}
	}
	found := &findings{}
	root := scan(data, limit, found)
	if root == nil {
		return nil, found.errors(file, data)
	}
	c := &checker{document: doc, found: found, root: root}
	c.shape(root, shapes()[doc], "", doc)
	c.values()
	value := new(T)
	if !root.dropped {
		err := json.Unmarshal(data, value, jsonv1.DefaultOptionsV1(), json.MatchCaseInsensitiveNames(false))
		switch {
		case err == nil && meaning != nil:
			meaning(c, value)
		case err != nil:
			c.refused = cmp.Or(c.refused, clip(err.Error()))
		}
	}
	if len(found.list) == 0 && c.refused != "" {
		found.add(root.start, "", "%s", c.refused)
	}
	if err := found.errors(file, data); err != nil {
		return nil, err
	}
	return value, nil
}
