package schema

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	cuejson "cuelang.org/go/encoding/json"
	"cuelang.org/go/encoding/jsonschema"
)

var update = flag.Bool("update", false, "write the golden files and the JSON Schemas anew")

// generateJSONSchema is the generator: a CUE definition as JSON Schema, indented.
func generateJSONSchema(t *testing.T, doc string) []byte {
	t.Helper()
	e := newEngine()
	definition := e.definition(strings.ToUpper(doc[:1]) + doc[1:])
	expr, err := jsonschema.Generate(definition, &jsonschema.GenerateConfig{Version: jsonschema.VersionDraft2020_12})
	if err != nil {
		t.Fatal(err)
	}
	expr.(*ast.StructLit).Elts = append(expr.(*ast.StructLit).Elts,
		&ast.Field{Label: ast.NewString("title"), Value: ast.NewString(doc)})
	data, err := e.ctx.BuildExpr(expr).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func TestJSONSchemasAreThoseOfTheDefinitions(t *testing.T) {
	t.Parallel()
	for _, doc := range jsonSchemaNames {
		want := generateJSONSchema(t, doc)
		if *update {
			if err := os.WriteFile(filepath.Join("jsonschema", doc+".schema.json"), want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := JSONSchema(doc)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("jsonschema/%s.schema.json is not what the definitions give; run go test ./schema -run JSONSchemas -update", doc)
		}
	}
	if _, err := JSONSchema("modul"); err == nil {
		t.Error("JSONSchema(modul): no error")
	}
}

// What the parser accepts the published schema accepts, and what it refuses by name or
// value the schema refuses too: the schema is read back by CUE to check documents.
func TestJSONSchemaAgreesWithTheParser(t *testing.T) {
	t.Parallel()
	for doc, texts := range accepted(t) {
		e := newEngine()
		text, err := JSONSchema(doc)
		if err != nil {
			t.Fatal(err)
		}
		expr, err := cuejson.Extract(doc, text)
		if err != nil {
			t.Fatal(err)
		}
		file, err := jsonschema.Extract(e.ctx.BuildExpr(expr), &jsonschema.Config{})
		if err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		published := e.ctx.BuildFile(file)
		check := func(data []byte) error {
			value, err := cuejson.Extract("x", data)
			if err != nil {
				t.Fatal(err)
			}
			return e.ctx.BuildExpr(value).Unify(published).Validate(cue.Concrete(true))
		}
		for name, data := range texts {
			if err := check(data); err != nil {
				t.Errorf("%s: the published schema refuses %s: %v", doc, name, err)
			}
			unknown := bytes.Replace(data, []byte("{"), []byte(`{"features": [],`), 1)
			if err := check(unknown); err == nil {
				t.Errorf("%s: the published schema accepts an unknown field in %s", doc, name)
			}
		}
	}
}
