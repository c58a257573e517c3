package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/schema"
)

const moduleFile = "module.json"

func (a *app) moduleCommand() *cobra.Command {
	command := &cobra.Command{Use: "module", Short: "Write and check a module.json, offline; leave a module alone for a while"}
	check := &cobra.Command{
		Use: "check [DIR|FILE…]", Short: "Check module.json with the verdict catalogue and builder give",
		RunE: func(_ *cobra.Command, args []string) error { return a.checkModules(args) },
	}
	var name string
	initialise := &cobra.Command{
		Use: "init [DIR]", Short: "Write a first module.json", Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return a.initModule(dir, name)
		},
	}
	initialise.Flags().StringVar(&name, "name", "", "the module's name (default the directory's)")
	command.AddCommand(check, initialise, a.moduleImportCommand(), a.moduleSuspendCommand(true), a.moduleSuspendCommand(false))
	return command
}

// moduleChecked is one verdict of module check, as JSON.
type moduleChecked struct {
	File   string `json:"file"`
	Module string `json:"module,omitempty"`
	Error  string `json:"error,omitempty"`
}

func (a *app) checkModules(args []string) error {
	if len(args) == 0 {
		args = []string{"."}
	}
	bad := 0
	checked := make([]moduleChecked, 0, len(args))
	for _, path := range args {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, moduleFile)
		}
		text, err := os.ReadFile(path)
		if err == nil {
			var module *schema.Module
			if module, err = schema.ParseModule(path, text); err == nil {
				checked = append(checked, moduleChecked{File: path, Module: module.Name})
				continue
			}
		}
		bad++
		checked = append(checked, moduleChecked{File: path, Error: err.Error()})
		fmt.Fprintln(a.stderr, err)
	}
	err := a.show(map[string]any{"modules": checked}, func() {
		for _, one := range checked {
			if one.Error == "" {
				fmt.Fprintf(a.stdout, "%s: module %s is fine\n", one.File, one.Module)
			}
		}
	})
	if err != nil {
		return err
	}
	if bad > 0 {
		return said(exitFailed)
	}
	return nil
}

const firstModule = `{
  "name": %q,
  "description": "What it is, in a line",
  "artifacts": {
    "files": { "kind": "archive", "path": "files" }
  },
  "resources": [
    { "id": "files", "type": "archive", "artifact": "files", "path": "/srv/%s" }
  ]
}
`

func (a *app) initModule(dir, name string) error {
	name, err := moduleName(dir, name)
	if err != nil {
		return err
	}
	text := fmt.Sprintf(firstModule, name, name)
	path := filepath.Join(dir, moduleFile)
	if err := os.MkdirAll(filepath.Join(dir, "files"), 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	if err := writeNew(path, []byte(text)); err != nil {
		return err
	}
	return a.did("%s is written; put files beside it in files/ and commit both", path)
}

// moduleName is the name given, or the directory's, if a module can have it.
func moduleName(dir, given string) (string, error) {
	name := given
	if name == "" {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		name = filepath.Base(absolute)
	}
	if _, err := schema.ParseModule(moduleFile, fmt.Appendf(nil, `{"name": %q}`, name)); err != nil {
		return "", &outcome{code: exitUsage, message: fmt.Sprintf("%q cannot be a module's name: lower case letters, digits and dashes, a letter first", name),
			hints: []string{"give one with --name NAME"}}
	}
	return name, nil
}

// writeNew writes a module.json where there is none.
func writeNew(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return &outcome{code: exitFailed, message: path + " is there already; nothing was written", hints: []string{"mesh module check " + filepath.Dir(path)}}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema " + documents(), Short: "The JSON Schema of a document, for editors", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := schema.JSONSchema(args[0])
			if err != nil {
				return usage("%v", err)
			}
			_, err = a.stdout.Write(text)
			return err
		},
	}
}

func documents() string {
	return strings.Join([]string{"module", "manifest", "declaration", "job", "result", "report"}, "|")
}
