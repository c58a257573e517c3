package schema

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// fuzzParser holds for any text: no panic; refused with Errors at places inside the text,
// or accepted, and then its canonical form is accepted too and is its own canonical form.
func fuzzParser(f *testing.F, doc string) {
	for _, data := range accepted(f)[doc] {
		f.Add(data)
	}
	for _, name := range []string{doc, "text"} {
		if archive, err := txtar.ParseFile(filepath.Join("testdata", "refused", name+".txtar")); err == nil {
			for i := 0; i < len(archive.Files); i += 2 {
				f.Add(archive.Files[i].Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := parseAs(doc, "fuzz", data)
		if err == nil {
			again(t, doc, "fuzz", data)
			return
		}
		list, ok := errors.AsType[Errors](err)
		if !ok || len(list) == 0 || len(list) > MaxErrors {
			t.Fatalf("refused with %T %v", err, err)
		}
		for _, one := range list {
			if one.Line < 1 || one.Column < 1 || one.Line > strings.Count(string(data), "\n")+1 || one.Message == "" {
				t.Fatalf("no place in the text: %v", one)
			}
		}
	})
}

func FuzzParseModule(f *testing.F)      { fuzzParser(f, "module") }
func FuzzParseManifest(f *testing.F)    { fuzzParser(f, "manifest") }
func FuzzParseDeclaration(f *testing.F) { fuzzParser(f, "declaration") }
func FuzzParseJob(f *testing.F)         { fuzzParser(f, "job") }
func FuzzParseResult(f *testing.F)      { fuzzParser(f, "result") }
func FuzzParseReport(f *testing.F)      { fuzzParser(f, "report") }
