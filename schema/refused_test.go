package schema

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

var errorLine = regexp.MustCompile(`^[a-z0-9-]+\.json:[1-9][0-9]*:[1-9][0-9]*: \S`)

// Every refusal there is, as its author would read it: testdata/refused/<document>.txtar
// holds each text and what it is answered with.
func TestRefusalsReadAsWritten(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/refused/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no refused documents: %v", err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if doc == "text" {
			doc = "module"
		}
		for i := 0; i+1 < len(archive.Files); i += 2 {
			input, want := archive.Files[i], &archive.Files[i+1]
			got := refusal(t, doc, input.Name, bytes.TrimSuffix(input.Data, []byte("\n")))
			if *update {
				want.Data = []byte(got)
			} else if got != string(want.Data) {
				t.Errorf("%s: %s is answered\n%swant\n%s", file, input.Name, got, want.Data)
			}
		}
		if *update {
			if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// refusal parses what must be refused, and holds what is true of every refusal.
func refusal(t *testing.T, doc, name string, data []byte) string {
	t.Helper()
	_, err := parseAs(doc, name, data)
	if err == nil {
		t.Errorf("%s %s: accepted", doc, name)
		return ""
	}
	list, ok := errors.AsType[Errors](err)
	if !ok || len(list) == 0 || len(list) > MaxErrors {
		t.Errorf("%s %s: not Errors, or not 1 to %d of them: %v", doc, name, MaxErrors, err)
	}
	paths := make(map[string]bool)
	for i, one := range list {
		if paths[one.Path] {
			t.Errorf("%s %s: two errors for %q", doc, name, one.Path)
		}
		paths[one.Path] = true
		if i > 0 && (one.Line < list[i-1].Line || one.Line == list[i-1].Line && one.Column < list[i-1].Column) {
			t.Errorf("%s %s: not in the order of the text: %v", doc, name, one)
		}
	}
	for line := range strings.Lines(err.Error()) {
		if !errorLine.MatchString(line) {
			t.Errorf("%s %s: %q does not start with file:line:column", doc, name, line)
		}
	}
	return err.Error() + "\n"
}
