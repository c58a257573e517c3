// Package conformance makes docs/reference/conformance.md: every numbered statement of the
// reference, and the tests that hold it. A test holds a statement by its name,
// TestS1_037_BuilderReachesNoNodeQueue; nothing else is believed.
package conformance

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// Statement is one numbered line of the reference.
type Statement struct {
	Number  string // S1-037
	Section string
	Text    string
}

// Test is a test function named after a statement.
type Test struct {
	Name string
	File string // slash path below the root
}

// Statements reads the lines "S1-037 | section | text | …" of the files.
func Statements(files ...string) ([]Statement, error) {
	var all []Statement
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read statements: %w", err)
		}
		scanner := bufio.NewScanner(file)
		for scanner.Scan() {
			fields := strings.SplitN(scanner.Text(), " | ", 4)
			if len(fields) >= 3 {
				all = append(all, Statement{Number: fields[0], Section: fields[1], Text: fields[2]})
			}
		}
		file.Close()
		if err := scanner.Err(); err != nil {
			return nil, fmt.Errorf("read statements %s: %w", name, err)
		}
	}
	return all, nil
}

var testName = regexp.MustCompile(`^TestS([123])_(\d{3})(_|$)`)

// Tests finds, below root, the tests of each statement, by number.
func Tests(root string) (map[string][]Test, error) {
	found := map[string][]Test{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		return testsOf(root, path, found)
	})
	for _, tests := range found {
		sort.Slice(tests, func(i, j int) bool { return tests[i].Name < tests[j].Name })
	}
	return found, err
}

// A function that skips unconditionally holds nothing, so its statement stays open.
func testsOf(root, path string, found map[string][]Test) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("read tests: %w", err)
	}
	relative, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Recv != nil || skips(function) {
			continue
		}
		if parts := testName.FindStringSubmatch(function.Name.Name); parts != nil {
			number := "S" + parts[1] + "-" + parts[2]
			found[number] = append(found[number], Test{Name: function.Name.Name, File: filepath.ToSlash(relative)})
		}
	}
	return nil
}

func skips(function *ast.FuncDecl) bool {
	if function.Body == nil || len(function.Body.List) == 0 {
		return true
	}
	statement, ok := function.Body.List[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := statement.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, selector.Sel.Name)
}

// Table renders the page. later says, for a statement without a test, where it belongs.
func Table(statements []Statement, tests map[string][]Test, later func(Statement) string) string {
	var page strings.Builder
	held := map[string]int{}
	total := map[string]int{}
	for _, s := range statements {
		total[s.Number[:2]]++
		if len(tests[s.Number]) > 0 {
			held[s.Number[:2]]++
		}
	}
	page.WriteString("# Conformance\n\nWritten by `make generate` from the names of the tests: a statement is held when a test carries\nits number, and open otherwise. `make lint` fails when this page is not what the tests say.\n\n")
	page.WriteString("| reference | statements | held |\n| --- | --- | --- |\n")
	for _, document := range []string{"S1", "S2", "S3"} {
		fmt.Fprintf(&page, "| %s | %d | %d |\n", document, total[document], held[document])
	}
	page.WriteString("\n| number | statement | test, or why not yet |\n| --- | --- | --- |\n")
	for _, s := range statements {
		fmt.Fprintf(&page, "| %s | %s | %s |\n", s.Number, s.Text, cell(tests[s.Number], s, later))
	}
	return page.String()
}

func cell(tests []Test, s Statement, later func(Statement) string) string {
	if len(tests) == 0 {
		return later(s)
	}
	names := make([]string, len(tests))
	for i, test := range tests {
		names[i] = fmt.Sprintf("[%s](../../%s)", test.Name, test.File)
	}
	return strings.Join(names, "<br>")
}
