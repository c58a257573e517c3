package schema

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// The JSON Schemas are generated from the CUE definitions by `make generate`; a test holds
// them to those. Generating at run time would link an encoder into every program.
//
//go:embed jsonschema/*.schema.json
var jsonSchemas embed.FS

// jsonSchemaNames are the documents [JSONSchema] knows.
var jsonSchemaNames = []string{"module", "manifest", "declaration", "job", "result", "report"}

// JSONSchema gives the JSON Schema (draft 2020-12) of module, manifest, declaration, job,
// result or report, for editors to complete and check by. The parsers here refuse more:
// duplicate keys, and what only the whole document shows.
func JSONSchema(doc string) ([]byte, error) {
	if !slices.Contains(jsonSchemaNames, doc) {
		return nil, fmt.Errorf("no document is called %s; there are %s", quote(doc), strings.Join(jsonSchemaNames, ", "))
	}
	return jsonSchemas.ReadFile("jsonschema/" + doc + ".schema.json")
}
