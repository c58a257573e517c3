package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// A test binary started with this variable is the program itself. Its value is the phase at
// which it says so on standard output and waits to be killed, or "run".
const asProgram = "MESH_BUILDER_TEST_STOP_AT"

func TestMain(m *testing.M) {
	if stop := os.Getenv(asProgram); stop != "" {
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer cancel()
		os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, stopAt(schema.Phase(stop))))
	}
	testenv.Run(m, registrytest.Leaks())
}

func stopAt(phase schema.Phase) func(schema.Phase) {
	return func(p schema.Phase) {
		if p == phase {
			fmt.Println("reached", p)
			select {} // SIGKILL is all that ends this
		}
	}
}

// program is the real builder as a process of its own.
type program struct {
	t    *testing.T
	cmd  *exec.Cmd
	once sync.Once
	log  *testenv.Buffer
	// reached is closed when the program stands at the phase it stops at.
	reached chan struct{}
}

// start runs the program with a umask and environment of its own; stop is a phase or "run".
func start(t *testing.T, stop, umask string, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, log: &testenv.Buffer{}, reached: make(chan struct{})}
	p.cmd = exec.Command("/bin/sh", append([]string{"-c", "umask " + umask + `; exec "$0" "$@"`, os.Args[0]}, args...)...)
	p.cmd.Env = append([]string{asProgram + "=" + stop, "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan struct{})
	t.Cleanup(func() { <-lines }) // which end with the program
	t.Cleanup(p.kill)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			if strings.HasPrefix(s.Text(), "reached ") {
				close(p.reached)
			}
		}
	}()
	return p
}

// kill is kill -9, and waits for the end.
func (p *program) kill() {
	p.once.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}

// lab is the surroundings of builders: broker, registry, and a repository of one module.
type lab struct {
	*buildertest.Mesh
	registry *registrytest.Registry
	repo     *testenv.Repo
	store    string // credential file
	key      string // file
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{Mesh: buildertest.New(t), registry: registrytest.Start(t), repo: testenv.Git(t)}
	config := l.registry.Config()
	l.store = credential(t, schema.Credential{URL: config.URL, Fingerprint: config.Fingerprint, Password: config.Token})
	l.key = filepath.Join(t.TempDir(), "key")
	private, _, err := pki.NewSealingKey()
	if err == nil {
		err = os.WriteFile(l.key, private, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func credential(t *testing.T, c schema.Credential) string {
	t.Helper()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "credential.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// worker starts a builder on the queue.
func (l *lab) worker(t *testing.T, name, work, stop string) *program {
	t.Helper()
	broker := credential(t, schema.Credential{URL: l.BuilderURL(name), Fingerprint: l.Fingerprint})
	return start(t, stop, "022", nil,
		"--broker-credential", broker, "--store-credential", l.store, "--key", l.key, "--work", work, "--name", name)
}

func (l *lab) writeModule(name string) {
	l.repo.Write(name+"/module.json", fmt.Sprintf(`{"name": %q, "artifacts": {"site": {"kind": "archive", "path": "site"}},
  "resources": [{"id": "site", "type": "archive", "artifact": "site", "path": "/srv/site"}]}`, name))
	l.repo.Write(name+"/site/index.html", "<p>"+name+"</p>\n")
}

func TestS1_042_BuilderKilledInAnyPhaseLeavesTheWorkToAnother(t *testing.T) {
	l := newLab(t)
	for _, phase := range schema.Phases {
		l.writeModule("killed-in-" + string(phase))
	}
	l.repo.Commit("a module for every phase")
	client := l.registry.Client(t)
	for _, phase := range schema.Phases {
		name, work := "killed-in-"+string(phase), t.TempDir()
		first := l.worker(t, "first", work, string(phase))
		l.Order(schema.Job{ID: name, Repository: l.repo.URL(), Path: name})
		select {
		case <-first.reached:
		case <-time.After(buildertest.Patience):
			t.Fatalf("phase %s was never reached\n%s", phase, first.log)
		}
		first.kill()
		left, err := os.ReadDir(filepath.Join(work, "builds"))
		if err != nil || len(left) != 1 && phase != schema.PhaseAnnounce {
			t.Errorf("killed in %s: %v, %v", phase, left, err)
		}
		if phase != schema.PhaseAnnounce && published(t, l.registry, name) {
			t.Errorf("killed in %s, and a manifest is there", phase)
		}

		second := l.worker(t, "second", work, "run") // the same directory: it sweeps what is left
		result := l.Next()
		if result.ID != name || result.Builder != "second" || result.Outcome != schema.OutcomeBuilt {
			t.Fatalf("killed in %s: %s by %s: %s %+v\n%s", phase, result.ID, result.Builder, result.Outcome, result.Error, second.log)
		}
		manifest, err := client.Manifest(t.Context(), name, result.Digest)
		if err != nil {
			t.Fatal(err)
		}
		for artifact, built := range manifest.Artifacts {
			if ok, err := client.HasBlob(t.Context(), "modules/"+name, built.Digest); err != nil || !ok {
				t.Errorf("killed in %s: %s of the manifest does not resolve: %v", phase, artifact, err)
			}
		}
		l.Settled()
		if left, err := os.ReadDir(filepath.Join(work, "builds")); err != nil || len(left) > 0 {
			t.Errorf("killed in %s: left over %v, %v", phase, left, err)
		}
		second.kill()
	}
	select {
	case more := <-l.Results:
		t.Errorf("a second result of %s", more.ID)
	default:
	}
}

// published says whether a module has any manifest, by looking into the registry's store.
func published(t *testing.T, r *registrytest.Registry, module string) bool {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.Dir, "docker/registry/v2/repositories/modules", module, "_manifests/tags/*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found) > 0
}

func timeout() <-chan time.Time { return time.After(buildertest.Patience) }
