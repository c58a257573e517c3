package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/internal/composefile"
	"github.com/mesh-control/mesh/schema"
)

// imported is what module import prints as JSON.
type imported struct {
	File   string             `json:"file,omitempty"` // what was written
	Module *schema.Module     `json:"module"`
	Notes  []composefile.Note `json:"notes"`
}

func (a *app) moduleImportCommand() *cobra.Command {
	var name string
	var printOnly bool
	command := &cobra.Command{
		Use: "import COMPOSE-FILE", Short: "Make a module.json of a Compose file, and say what was not carried over", Args: cobra.ExactArgs(1),
		Long: "Make one module of a Compose file: a container for each service, an artifact for each\n" +
			"image pulled or built, a directory for each named volume. The module.json is written\n" +
			"beside the file. What a module cannot say is listed, and nothing is dropped in silence.",
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := filepath.Dir(args[0])
			name, err := moduleName(dir, name)
			if err != nil {
				return err
			}
			module, notes, err := composefile.Import(cmd.Context(), name, args[0])
			if err != nil {
				return err
			}
			text, err := moduleText(module)
			if err != nil {
				return err
			}
			path := filepath.Join(dir, moduleFile)
			if _, err := schema.ParseModule(path, text); err != nil {
				return fmt.Errorf("what %s says is no valid module:\n%w", args[0], err)
			}
			answer := imported{Module: module, Notes: notes}
			if !printOnly {
				if err := writeNew(path, text); err != nil {
					return err
				}
				answer.File = path
			}
			return a.show(answer, func() { a.printImported(answer, text) })
		},
	}
	command.Flags().StringVar(&name, "name", "", "the module's name (default the directory's)")
	command.Flags().BoolVar(&printOnly, "print", false, "print the module.json, and write nothing")
	return command
}

// moduleText is a module.json as a person would lay it out.
func moduleText(module *schema.Module) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(module)
	return text.Bytes(), err
}

func (a *app) printImported(answer imported, text []byte) {
	if answer.File == "" {
		_, _ = a.stdout.Write(text)
	} else {
		fmt.Fprintf(a.stdout, "%s is written: module %s, %s; look at it, then commit it\n",
			answer.File, answer.Module.Name, count(len(answer.Module.Resources), "resource"))
	}
	for _, note := range answer.Notes {
		fmt.Fprintf(a.stderr, "%s: %s\n", note.Where, note.Message)
	}
}
