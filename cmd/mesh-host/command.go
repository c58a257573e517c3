package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/schema"
)

// options are the flags of every command.
type options struct {
	root, name, config, file string
	detach, services, asJSON bool
}

func command() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:          "mesh-host",
		Short:        "Make this machine what the mesh declares for it",
		Version:      version,
		SilenceUsage: true, SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.root, "root", "", "keep the whole node beneath this directory (default: the machine itself, state in /var/lib/mesh/host)")
	flags.StringVar(&o.name, "name", "", "the node's name")
	flags.StringVar(&o.config, "config", "", "configuration file (default: config.json in the state directory)")
	run := &cobra.Command{Use: "run", Short: "Follow the mesh until stopped; what was made runs on", RunE: o.run}
	run.Flags().BoolVar(&o.detach, "detach", false, "return once the host answers, and leave it running")
	status := &cobra.Command{Use: "status", Short: "What this node is, resource by resource", RunE: o.status}
	status.Flags().BoolVar(&o.asJSON, "json", false, "print the report as JSON")
	plan := &cobra.Command{Use: "plan", Short: "What would be done to this machine", RunE: o.plan}
	plan.Flags().StringVar(&o.file, "file", "", "a signed declaration (default: the last one accepted)")
	apply := &cobra.Command{Use: "apply", Short: "Apply a signed declaration from a file, without the broker", RunE: o.apply}
	apply.Flags().StringVar(&o.file, "file", "", "a signed declaration (default: the last one accepted)")
	stop := &cobra.Command{Use: "stop", Short: "Stop the host; what it made runs on", RunE: o.stop}
	stop.Flags().BoolVar(&o.services, "services", false, "end the containers and services it made as well")
	root.AddCommand(
		&cobra.Command{Use: "init", Short: "Make this node's own keys, and print the public halves", RunE: o.init},
		run, status, plan, apply, stop,
	)
	for _, sub := range root.Commands() {
		sub.Args = cobra.NoArgs
	}
	root.PersistentPreRunE = func(*cobra.Command, []string) error { return o.absolute() }
	return root
}

// absolute makes paths hold wherever a detached host stands.
func (o *options) absolute() (err error) {
	for _, name := range []*string{&o.root, &o.config, &o.file} {
		if *name == "" {
			continue
		}
		if *name, err = filepath.Abs(*name); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) layout() host.Layout { return host.NewLayout(o.root) }

func (o *options) load() (host.Config, error) {
	name := o.config
	if name == "" {
		name = o.layout().ConfigFile()
	}
	config, err := host.LoadConfig(name)
	if err != nil {
		return config, err
	}
	if o.name != "" && o.name != config.Node {
		return config, fmt.Errorf("--name is %q and %s is the configuration of node %q", o.name, name, config.Node)
	}
	config.Version = version
	return config, nil
}

func (o *options) init(cmd *cobra.Command, _ []string) error {
	if o.name == "" {
		return errors.New("init needs --name, the node's name")
	}
	identity, err := host.LoadIdentity(o.layout())
	if err != nil {
		return err
	}
	return printJSON(cmd.OutOrStdout(), identity.Public(o.name))
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

func (o *options) open() (*host.Host, error) {
	config, err := o.load()
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return host.Open(config, o.layout(), log)
}

func (o *options) run(cmd *cobra.Command, _ []string) error {
	if o.detach {
		return o.detached(cmd)
	}
	h, err := o.open()
	if err != nil {
		return err
	}
	defer h.Close()
	forget, err := h.RecordProcess()
	if err != nil {
		return err
	}
	defer forget()
	return h.Run(cmd.Context())
}

func (o *options) status(cmd *cobra.Command, _ []string) error {
	var report schema.Report
	err := host.Ask(cmd.Context(), o.layout(), http.MethodGet, "/status", nil, &report)
	if errors.Is(err, host.ErrNotRunning) {
		report, err = o.offlineStatus(cmd.Context())
	}
	if err != nil {
		return err
	}
	if o.asJSON {
		return printJSON(cmd.OutOrStdout(), report)
	}
	out := cmd.OutOrStdout()
	for _, r := range report.Resources {
		fmt.Fprintf(out, "%-10s %-10s %s", r.Phase, r.Type, r.ID)
		if r.Restarts > 0 {
			fmt.Fprintf(out, " (%d restarts)", r.Restarts)
		}
		for _, note := range []string{r.Drift, r.Message} {
			if note != "" {
				fmt.Fprintf(out, ": %s", note)
			}
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, host.Summary(report))
	return nil
}

func (o *options) offlineStatus(ctx context.Context) (schema.Report, error) {
	h, err := o.open()
	if err != nil {
		return schema.Report{}, err
	}
	defer h.Close()
	return h.Look(ctx), nil
}

func (o *options) plan(cmd *cobra.Command, _ []string) error {
	steps, err := o.steps(cmd.Context())
	if err != nil {
		return err
	}
	for _, step := range steps {
		fmt.Fprintln(cmd.OutOrStdout(), step)
	}
	if len(steps) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "nothing to do")
	}
	return nil
}

func (o *options) steps(ctx context.Context) (steps []host.Step, err error) {
	method, body := http.MethodGet, []byte(nil)
	if o.file != "" {
		method = http.MethodPost
		if body, err = os.ReadFile(o.file); err != nil {
			return nil, err
		}
	}
	err = host.Ask(ctx, o.layout(), method, "/plan", bytes.NewReader(body), &steps)
	if !errors.Is(err, host.ErrNotRunning) {
		return steps, err
	}
	h, err := o.open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if o.file == "" {
		return h.Plan(ctx)
	}
	return h.PlanFor(ctx, o.file, body)
}

func (o *options) apply(cmd *cobra.Command, _ []string) error {
	var data []byte
	if o.file != "" {
		var err error
		if data, err = os.ReadFile(o.file); err != nil {
			return err
		}
		var generation int64
		err = host.Ask(cmd.Context(), o.layout(), http.MethodPost, "/apply", bytes.NewReader(data), &generation)
		if err == nil {
			return o.follow(cmd, generation)
		}
		if !errors.Is(err, host.ErrNotRunning) {
			return err
		}
	}
	h, err := o.open()
	if err != nil {
		return err
	}
	defer h.Close()
	if o.file != "" {
		if err := h.Accept(o.file, data); err != nil {
			return err
		}
	}
	serving, stop := context.WithCancel(cmd.Context())
	served := make(chan struct{})
	go func() { defer close(served); h.Serve(serving) }()
	outcome, cause, err := h.Converge(cmd.Context())
	stop()
	<-served
	if err != nil {
		return err
	}
	return ended(cmd.OutOrStdout(), outcome, cause)
}

func ended(w io.Writer, outcome, cause string) error {
	if outcome != host.OutcomeApplied {
		return fmt.Errorf("%s: %s", outcome, cause)
	}
	_, err := fmt.Fprintln(w, outcome)
	return err
}

// follow waits for the running host to have made up its mind about a generation.
func (o *options) follow(cmd *cobra.Command, generation int64) error {
	for {
		var r schema.Report
		if err := host.Ask(cmd.Context(), o.layout(), http.MethodGet, "/status", nil, &r); err != nil {
			return err
		}
		if r.Seen > generation {
			return fmt.Errorf("generation %d was overtaken by %d", generation, r.Seen)
		}
		if r.Outcome != "" {
			return ended(cmd.OutOrStdout(), r.Outcome, r.Cause)
		}
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// stopWithin is how long a host may take to let go before it is killed.
const stopWithin = 30 * time.Second

func (o *options) stop(cmd *cobra.Command, _ []string) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), stopWithin)
	pid, err := host.StopRunning(ctx, o.layout())
	cancel()
	if err != nil {
		return err
	}
	if pid == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "no host is running")
	} else {
		fmt.Fprintf(cmd.OutOrStdout(), "host %d stopped\n", pid)
	}
	if !o.services {
		return nil
	}
	h, err := o.open()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.Dismantle(cmd.Context()); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "containers and services ended")
	return nil
}
