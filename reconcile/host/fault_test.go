package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

// faultWord makes the test program a host that kills itself at a point of a pass.
const faultWord = "fault-host"

// faultMain applies a declaration and ends by SIGKILL at the point: root, configuration,
// declaration, point.
func faultMain(args []string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	config, err := host.LoadConfig(args[1])
	fail(err)
	config.Fault = func(p host.Point) {
		if p == host.Point(args[3]) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	h, err := host.Open(config, host.NewLayout(args[0]), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	fail(err)
	go h.Serve(context.Background())
	data, err := os.ReadFile(args[2])
	fail(err)
	fail(h.Accept(args[2], data))
	_, _, err = h.Converge(context.Background())
	fail(err)
}

// killAt runs a host of its own on the node's directory until it kills itself at the point.
func (n *node) killAt(point host.Point, d schema.Declaration) {
	n.t.Helper()
	n.close()
	dir := n.t.TempDir()
	config, declaration := filepath.Join(dir, "config.json"), filepath.Join(dir, "declaration.json")
	check(n.t, host.SaveConfig(config, n.config))
	check(n.t, os.WriteFile(declaration, encode(n.t, d), 0o600))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], faultWord, n.root, config, declaration, string(point))
	// What the host starts outlives it; its output must not be waited for.
	out, err := os.Create(filepath.Join(dir, "out"))
	check(n.t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		text, _ := os.ReadFile(out.Name())
		n.t.Fatalf("the host was not killed at %s: %v\n%s", point, err, text)
	}
	n.open()
}

// twoVersions are declarations that between them pass every point of a pass; last is what the
// second one's container does.
func (n *node) twoVersions(last string) (one, two []schema.Resource) {
	web, service := freePort(n.t), freePort(n.t)
	program := app(n.t)
	version := func(v string) []schema.Resource {
		source, digest := n.pushArchive(map[string]string{"app*": program, "version": v})
		command := []string{"serve", ":80", "/config/version"}
		if v == "2" && last != "" {
			command = []string{last, "3"}
		}
		return []schema.Resource{
			{ID: "m/config", Type: schema.TypeFile, Path: "/etc/mesh/m/version", Content: text(v)},
			{ID: "m/tree", Type: schema.TypeArchive, Path: "/srv/tree", Source: source, Digest: digest},
			{
				ID: "m/web", Type: schema.TypeContainer, Image: n.image, Command: command, Env: map[string]string{"V": v},
				Mounts: []schema.Mount{{Source: "/etc/mesh/m", Target: "/config"}}, After: []string{"m/config"},
				Ports:  []schema.Port{{Container: 80, Host: web, Address: "127.0.0.1"}},
				Health: &schema.Health{HTTP: fmt.Sprintf("http://127.0.0.1:%d/", web), Window: 3},
			},
			{
				ID: "m/daemon", Type: schema.TypeService, Exec: "/srv/tree/app", After: []string{"m/tree"},
				Args:   []string{"serve", fmt.Sprintf("127.0.0.1:%d", service), "/srv/tree/version"},
				Health: &schema.Health{HTTP: fmt.Sprintf("http://127.0.0.1:%d/", service)},
			},
		}
	}
	one, two = version("1"), version("2")
	one = append(one, schema.Resource{ID: "n/old", Type: schema.TypeFile, Path: "/etc/mesh/n/old", Content: text("old")})

	n.web, n.service = fmt.Sprintf("http://127.0.0.1:%d/", web), fmt.Sprintf("http://127.0.0.1:%d/", service)
	return one, two
}

// processes counts the running programs whose command line names part.
func processes(part string) int {
	found := 0
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		line, _ := os.ReadFile(name)
		if strings.Contains(string(line), part) && !strings.Contains(string(line), faultWord) {
			found++
		}
	}
	return found
}

func TestKilledAtEveryPointConverges(t *testing.T) {
	t.Parallel()
	for _, point := range host.Points {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			last, want, answer := "", host.OutcomeApplied, "2"
			if point == host.PointRolledBack {
				last, want, answer = "exit", host.OutcomeRolledBack, "2" // the file is new, the container the old one
			}
			one, two := n.twoVersions(last)
			n.mustApply(one...)
			n.killAt(point, n.declaration(two...))
			outcome, cause := n.converge()
			if outcome != want {
				t.Fatalf("outcome %s: %s", outcome, cause)
			}
			if steps, err := n.host.Plan(context.Background()); err != nil || len(steps) != 0 {
				t.Errorf("still to do: %v %v", steps, err)
			}
			if got := get(t, n.web); got != answer {
				t.Errorf("the container answers %q", got)
			}
			if got := get(t, n.service); got != "2" {
				t.Errorf("the service answers %q", got)
			}
			if got := processes(n.root + "/srv/tree/app"); got != 1 {
				t.Errorf("%d processes of the service run", got)
			}
			containers, err := n.engine.List(context.Background(), map[string]string{engine.LabelNode: n.name})
			check(t, err)
			if len(containers) != 1 {
				t.Errorf("containers: %+v", containers)
			}
			if _, err := os.Stat(n.path("/etc/mesh/n/old")); err == nil {
				t.Error("what is no longer declared is still there")
			}
		})
	}
}

func TestStateLostNothingKilled(t *testing.T) {
	t.Parallel()
	damage := map[string]func(name string) error{
		"missing":   os.Remove,
		"truncated": func(name string) error { return os.Truncate(name, 1) },
		"nul":       func(name string) error { return os.WriteFile(name, make([]byte, 64), 0o600) },
	}
	for how, destroy := range damage {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			one, _ := n.twoVersions("")
			n.mustApply(one...)
			container, service := n.container("m/web"), processID(t, n.root+"/srv/tree/app")
			before := n.host.Report(context.Background()).Sequence
			n.close()
			for _, name := range []string{"state.json", "owned.json"} {
				check(t, destroy(filepath.Join(n.layout.State, name)))
			}
			n.open()
			if outcome, cause := n.converge(); outcome != host.OutcomeApplied {
				t.Fatalf("outcome %s: %s", outcome, cause)
			}
			if after := n.container("m/web"); after.ID != container.ID || !after.Started.Equal(container.Started) {
				t.Error("the container was touched")
			}
			if after := processID(t, n.root+"/srv/tree/app"); after != service {
				t.Error("the service was touched")
			}
			if report := n.host.Report(context.Background()); report.Sequence <= before || report.Applied != 1 {
				t.Errorf("the report counts back: %d after %d, applied %d", report.Sequence, before, report.Applied)
			}
			n.mustApply() // and it still knows what to take away
			if _, err := os.Lstat(n.path("/srv/tree")); err == nil {
				t.Error("the archive is still there")
			}
		})
	}
}

func processID(t testing.TB, part string) string {
	t.Helper()
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if line, _ := os.ReadFile(name); strings.HasPrefix(string(line), part) {
			return filepath.Base(filepath.Dir(name))
		}
	}
	t.Fatalf("no process %s", part)
	return ""
}

func TestDamagedDeclarationFallsBackAndKillsNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, two := n.twoVersions("")
	n.mustApply(one...)
	n.mustApply(two...)
	container := n.container("m/web")
	n.close()
	for _, name := range []string{"declaration.json", "declaration.previous.json", "state.json"} {
		check(t, os.WriteFile(filepath.Join(n.layout.State, name), nil, 0o600))
	}
	n.open()
	if outcome, _ := n.converge(); outcome != "" {
		t.Errorf("a pass without a declaration gave %q", outcome)
	}
	if after := n.container("m/web"); after.ID != container.ID || !after.Running() {
		t.Error("the container was touched")
	}
	if got := get(t, n.service); got != "2" {
		t.Errorf("the service answers %q", got)
	}
	n.mustApply(two...)
	if after := n.container("m/web"); after.ID != container.ID {
		t.Error("the container was made anew")
	}
}
