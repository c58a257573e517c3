package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

// app holds what every command shares: the streams and the global flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	contextPath string
	output      string
	timeout     time.Duration
	yes         bool
	running     string // the command being run, for error messages
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "mesh",
		Short:         "See, build and push what a mesh of machines runs",
		Long:          "See, build and push what a mesh of machines runs.\n\n" + exitHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.contextPath, "context", "", "context file (default $MESH_CONTEXT, then ~/.config/mesh/context.json)")
	flags.StringVarP(&a.output, "output", "o", "table", "table or json (graph: text, dot, mermaid or json)")
	flags.DurationVar(&a.timeout, "timeout", 15*time.Minute, "how long to wait at most")
	flags.BoolVarP(&a.yes, "yes", "y", false, "do what is shown without asking")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%v", err) })
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		a.running = strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), "mesh"))
		return a.checkOutput(cmd)
	}
	root.AddGroup(
		&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "change", Title: "Change:"},
		&cobra.Group{ID: "machines", Title: "Machines:"}, &cobra.Group{ID: "modules", Title: "Modules:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, command := range commands {
			command.GroupID = group
			root.AddCommand(command)
		}
	}
	add("look", a.statusCommand(), a.behindCommand(), a.planCommand(), a.whyCommand(), a.traceCommand(), a.buildsCommand(), a.graphCommand(), a.doctorCommand())
	add("change", a.buildCommand(), a.assignCommand(), a.unassignCommand(), a.pushCommand(), a.secretCommand(), a.builderCommand())
	add("machines", a.nodeCommand())
	add("modules", a.moduleCommand(), a.repoCommand(), a.schemaCommand())
	root.AddCommand(a.versionCommand())
	root.InitDefaultCompletionCmd()
	wrongUse(root)
	return root
}

// outputs annotates a command that prints in other formats than a table or JSON: their names,
// the usual one first.
const outputs = "outputs"

func (a *app) checkOutput(cmd *cobra.Command) error {
	formats := []string{"table", "json"}
	if own := cmd.Annotations[outputs]; own != "" {
		formats = strings.Fields(own)
		if !cmd.Flags().Changed("output") {
			a.output = formats[0]
		}
	}
	if !slices.Contains(formats, a.output) {
		return usage("-o %s is not known here; use %s", a.output, strings.Join(formats, ", "))
	}
	return nil
}

// wrongUse makes cobra's own complaints about arguments exit 2 like our own.
func wrongUse(command *cobra.Command) {
	if command.HasSubCommands() && !command.Runnable() {
		command.Args = cobra.ArbitraryArgs // else cobra refuses what the root does not know, its own way
		command.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noCommand(cmd, args[0])
			}
			return cmd.Help()
		}
	} else if check := command.Args; check != nil {
		command.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &outcome{code: exitUsage, message: err.Error(), hints: []string{"usage: " + cmd.UseLine()}}
			}
			return nil
		}
	}
	for _, child := range command.Commands() {
		wrongUse(child)
	}
}

// noCommand says that a command has no such subcommand, and which one is spelled like it.
func noCommand(cmd *cobra.Command, name string) error {
	cmd.SuggestionsMinimumDistance = 2
	hint := cmd.CommandPath() + " --help lists what there is"
	if like := cmd.SuggestionsFor(name); len(like) > 0 {
		hint = "did you mean " + cmd.CommandPath() + " " + like[0] + "?"
	}
	return &outcome{code: exitUsage, message: fmt.Sprintf("no command %q", name), hints: []string{hint}}
}

// client opens the context file. Every command that needs the controller begins with it.
func (a *app) client() (*apiclient.Client, error) {
	path := a.contextPath
	if path == "" {
		path = a.getenv("MESH_CONTEXT")
	}
	if path == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			return nil, fmt.Errorf("find the context file: %w", err)
		}
		path = filepath.Join(config, "mesh", "context.json")
	}
	file, err := apiclient.ReadContext(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &outcome{code: exitFailed, message: "no context file at " + path,
			hints: []string{"mesh-genesis install writes one; name it with --context or MESH_CONTEXT"}}
	}
	if err != nil {
		return nil, err
	}
	return apiclient.New(file), nil
}

// ask opens the client, bounds ctx by --timeout, and calls fn.
func (a *app) ask(cmd *cobra.Command, fn func(ctx context.Context, client *apiclient.Client) error) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	return fn(ctx, client)
}

// patience is how long a controller may be away while something goes on without it: a push
// that replaces the controller itself takes it away for a moment.
const patience = 2 * time.Minute

// patiently repeats a question that changes nothing for as long as nobody answers it.
func (a *app) patiently(ctx context.Context, question func() error) error {
	for started := time.Now(); ; {
		err := question()
		gone := errors.Is(err, apiclient.ErrUnreachable)
		var problem *api.Error
		if errors.As(err, &problem) {
			gone = problem.Code == api.CodeUnavailable
		}
		if !gone || time.Since(started) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// count is a number of things, in words.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// show prints an answer as JSON when asked to, else through table.
func (a *app) show(answer any, table func()) error {
	if a.output == "json" {
		encoder := json.NewEncoder(a.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	}
	table()
	return nil
}

// did says that something was done, where the controller has nothing more to say.
func (a *app) did(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return a.show(map[string]string{"done": text}, func() { fmt.Fprintln(a.stdout, text) })
}

// confirm asks on a terminal; without one it refuses unless -y was given.
func (a *app) confirm(question string) error {
	if a.yes {
		return nil
	}
	file, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return &outcome{code: exitUsage, message: "there is no terminal to ask on", hints: []string{"-y does what is shown without asking"}}
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.ToLower(strings.TrimSpace(answer)) != "y" {
		return &outcome{code: exitFailed, message: "nothing was changed"}
	}
	return nil
}
