package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sample = `package x

import "testing"

func TestS1_037_Held(t *testing.T) { t.Log("x") }
func TestS1_038(t *testing.T)      { t.Log("x") }
func TestS1_039_Skipped(t *testing.T) { t.Skip("not yet") }
func TestS1_40_ShortNumber(t *testing.T) { t.Log("x") }
`

func TestStatementsAreHeldByNameAlone(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "x_test.go"), []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	tests, err := Tests(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(tests) != 2 || tests["S1-037"][0].Name != "TestS1_037_Held" || tests["S1-038"] == nil {
		t.Fatalf("found %v, want S1-037 and S1-038 only", tests)
	}
	statements := []Statement{{Number: "S1-037", Text: "one"}, {Number: "S1-040", Text: "two"}}
	page := Table(statements, tests, func(Statement) string { return "open" })
	for _, want := range []string{"| S1 | 2 | 1 |", "| S1-037 | one | [TestS1_037_Held](../../x_test.go) |", "| S1-040 | two | open |"} {
		if !strings.Contains(page, want) {
			t.Errorf("page lacks %q:\n%s", want, page)
		}
	}
}

func TestTheReferenceIsWhole(t *testing.T) {
	for file, want := range map[string]int{"statements-1.txt": 168, "statements-2.txt": 249, "statements-3.txt": 96} {
		statements, err := Statements(filepath.Join("..", "..", "docs", "reference", file))
		if err != nil {
			t.Fatal(err)
		}
		if len(statements) != want {
			t.Errorf("%s has %d statements, want %d", file, len(statements), want)
		}
	}
}
