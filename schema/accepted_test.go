package schema

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// accepted reads testdata/accepted/<document>-<name>.json, by document and file.
func accepted(t testing.TB) map[string]map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/accepted/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no accepted documents: %v", err)
	}
	all := make(map[string]map[string][]byte)
	for _, file := range files {
		doc, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "-")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if all[doc] == nil {
			all[doc] = make(map[string][]byte)
		}
		all[doc][file] = data
	}
	return all
}

// parseAs parses a document of any kind to a value that encodes again.
func parseAs(doc, file string, data []byte) (any, error) {
	switch doc {
	case "module":
		return ParseModule(file, data)
	case "manifest":
		return ParseManifest(file, data)
	case "declaration":
		return ParseDeclaration(file, data)
	case "job":
		return ParseJob(file, data)
	case "result":
		return ParseResult(file, data)
	case "report":
		return ParseReport(file, data)
	}
	panic("no document " + doc)
}
