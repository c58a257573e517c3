// Conformance writes docs/reference/conformance.md, or with -check fails when the page is
// not what the tests say. It is run from the repository's root.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/mesh-control/mesh/internal/conformance"
)

const page = "docs/reference/conformance.md"

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	statements, err := conformance.Statements("docs/reference/statements-1.txt", "docs/reference/statements-2.txt", "docs/reference/statements-3.txt")
	if err != nil {
		return err
	}
	tests, err := conformance.Tests(".")
	if err != nil {
		return err
	}
	table := conformance.Table(statements, tests, conformance.Later)
	if !check {
		return os.WriteFile(page, []byte(table), 0o644)
	}
	current, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	if string(current) != table {
		return fmt.Errorf("%s is out of date; run make generate", page)
	}
	return nil
}
