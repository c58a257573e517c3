package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mesh-control/mesh/genesis"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
)

// patience bounds whatever a slow machine may take.
const patience = 2 * time.Minute

// node is the one machine of the mesh.
const node = "e1"

// firstPort keeps away from the ports of a mesh that another package's tests raise meanwhile.
const firstPort = 7600

func TestMain(m *testing.M) { testenv.Run(uninstalling{m}) }

// uninstalling takes the mesh away after the tests, if one was raised.
type uninstalling struct{ *testing.M }

func (u uninstalling) Run() int {
	code := u.M.Run()
	if raised.dir != "" {
		var out bytes.Buffer
		if err := genesis.Uninstall(context.Background(), raised.dir, &out); err != nil {
			fmt.Fprintf(os.Stderr, "uninstall: %v\n%s", err, &out)
			code = max(code, 1)
		}
		if err := os.RemoveAll(raised.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// raised is the mesh of this test binary. All its tests share it, each with repositories and
// modules of names of its own.
var raised struct {
	once     sync.Once
	err      error
	dir, bin string // of the installation; of the programs
	engine   string
	said     bytes.Buffer

	address, gitURL, repositories string
}

// lab is the mesh as one test uses it.
type lab struct{ t *testing.T }

func theMesh(t *testing.T) lab {
	t.Helper()
	engine := testenv.Engine(t) // skips under -short
	if os.Getuid() != 0 {
		t.Skip("the mesh's servers take accounts of their own, which takes root")
	}
	if _, err := net.InterfaceByName("docker0"); err != nil {
		t.Skip("the engine has no bridge, over which containers would reach the mesh")
	}
	raised.once.Do(func() { raised.err = raise(engine) })
	if raised.err != nil {
		t.Fatalf("raise a mesh: %v\n%s", raised.err, &raised.said)
	}
	return lab{t}
}

// raise installs a mesh in a directory that PostgreSQL's account can reach.
func raise(engine string) error {
	var err error
	if raised.dir, err = os.MkdirTemp("/var/tmp", "e2e"); err != nil {
		return err
	}
	if err := os.Chmod(raised.dir, 0o711); err != nil {
		return err
	}
	raised.engine, raised.bin = engine, filepath.Join(raised.dir, "bin")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", raised.bin+"/", "../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the programs: %w\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	in := &genesis.Installer{Dir: raised.dir, Mesh: "e2e", Node: node, Engine: engine, Source: "..", Programs: raised.bin, Port: firstPort, Out: &raised.said}
	if err := in.Install(ctx); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(raised.dir, "addresses.sh"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, "'")
		switch name {
		case "address":
			raised.address = value
		case "git_url":
			raised.gitURL = value
		case "repositories":
			raised.repositories = value
		}
	}
	return nil
}

// environment is what programs of the tests run with.
func environment() []string {
	return []string{
		"PATH=" + raised.bin + ":" + os.Getenv("PATH"), "HOME=" + raised.dir, "LANG=C.UTF-8", "NO_COLOR=1",
		"MESH_CONTEXT=" + filepath.Join(raised.dir, "operator.json"), "DOCKER_HOST=" + raised.engine,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=Author", "GIT_AUTHOR_EMAIL=author@example.org",
		"GIT_COMMITTER_NAME=Author", "GIT_COMMITTER_EMAIL=author@example.org",
	}
}

// command runs a program and gives what it printed; it has to succeed.
func (l lab) command(name string, args ...string) string {
	l.t.Helper()
	out, err := l.try(name, args...)
	if err != nil {
		l.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func (l lab) try(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(l.t.Context(), name, args...)
	if name == "mesh" {
		cmd.Path, cmd.Err = filepath.Join(raised.bin, "mesh"), nil
	}
	cmd.Env = environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, &stderr)
	}
	return strings.TrimSpace(stdout.String()), nil
}

// until waits for a condition.
func (l lab) until(what string, condition func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// container is what the engine says of one container of a module on the node.
type container struct {
	ID     string
	Config struct {
		Image  string
		Env    []string
		Cmd    []string
		Labels map[string]string
	}
	Args   []string
	Mounts []struct{ Source, Destination string }
	State  struct{ Pid int }
}

// containers lists a module's, running or not.
func (l lab) containers(module string) []container {
	l.t.Helper()
	ids := strings.Fields(l.command("docker", "ps", "-aq", "--no-trunc", "--filter", "label=mesh.node="+node, "--filter", "label=mesh.module="+module))
	if len(ids) == 0 {
		return nil
	}
	var found []container
	if err := json.Unmarshal([]byte(l.command("docker", append([]string{"inspect"}, ids...)...)), &found); err != nil {
		l.t.Fatal(err)
	}
	return found
}

// script runs testdata/NAME.txtar against the mesh. Beside testscript's own commands it has
//
//	repository NAME       a bare repository the mesh can reach, its clone in $WORK/NAME, its address in $NAME
//	commit NAME MESSAGE   everything in the clone, pushed; $COMMIT is the commit
//	eventually COMMAND…   run until it succeeds
//	code N COMMAND…       the exact exit code
//	keep NAME             what the last command printed, without the end of line, in $NAME
func (l lab) script(name string) {
	l.t.Helper()
	testscript.Run(l.t, testscript.Params{
		Files: []string{filepath.Join("testdata", name+".txtar")}, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, environment()...)
			env.Setenv("NODE", node)
			env.Setenv("ADDRESS", raised.address)
			env.Setenv("ROOT", filepath.Join(raised.dir, "node"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"repository": makeRepository, "commit": commit, "eventually": eventually, "code": testenv.ScriptCode,
			"keep": func(ts *testscript.TestScript, _ bool, args []string) {
				if len(args) != 1 {
					ts.Fatalf("usage: keep NAME")
				}
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
			},
		},
	})
}

func makeRepository(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: repository NAME")
	}
	bare, clone := filepath.Join(raised.repositories, args[0]+".git"), ts.MkAbs(args[0])
	ts.Check(ts.Exec("git", "init", "-q", "--bare", "--initial-branch=main", bare))
	ts.Check(ts.Exec("git", "init", "-q", "--initial-branch=main", clone))
	ts.Check(ts.Exec("git", "-C", clone, "remote", "add", "origin", bare))
	ts.Setenv(args[0], raised.gitURL+"/"+args[0]+".git")
}

func commit(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: commit NAME MESSAGE")
	}
	clone := ts.MkAbs(args[0])
	ts.Check(ts.Exec("git", "-C", clone, "add", "--all"))
	ts.Check(ts.Exec("git", "-C", clone, "commit", "-q", "--allow-empty", "-m", args[1]))
	ts.Check(ts.Exec("git", "-C", clone, "push", "-q", "origin", "HEAD:main"))
	ts.Check(ts.Exec("git", "-C", clone, "rev-parse", "HEAD"))
	ts.Setenv("COMMIT", strings.TrimSpace(ts.ReadFile("stdout")))
}

func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: eventually COMMAND…")
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if (err == nil) != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("not within %s: %v", patience, err)
		}
	}
}

// settings are the flags that assign a module as it is assigned.
func (l lab) settings(module string) []string {
	l.t.Helper()
	operator, err := apiclient.ReadContext(filepath.Join(raised.dir, "operator.json"))
	if err != nil {
		l.t.Fatal(err)
	}
	client := apiclient.New(operator)
	defer client.Close()
	assigned, err := api.AssignmentList.Do(l.t.Context(), client, api.None{})
	if err != nil {
		l.t.Fatal(err)
	}
	var flags []string
	for _, a := range assigned.Assignments {
		for name, value := range a.Settings {
			if a.Module == module && a.Node == node {
				flags = append(flags, "--set", name+"="+value)
			}
		}
	}
	return flags
}
