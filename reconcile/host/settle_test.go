package host_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

func TestWhatFailedIsPutBackAndTheRestKept(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, two := n.twoVersions("exit")
	n.mustApply(one...)
	before := n.container("m/web")
	outcome, cause := n.apply(two...)
	if outcome != host.OutcomeRolledBack || !strings.Contains(cause, "m/web") || !strings.Contains(cause, "words before the end") {
		t.Fatalf("outcome %s: %s", outcome, cause)
	}
	if after := n.container("m/web"); after.ID != before.ID || !after.Running() {
		t.Errorf("the previous container is not back: %+v", after)
	}
	if got := get(t, n.service); got != "2" {
		t.Errorf("the service that works was put back too: %q", got)
	}
	if r := n.host.Look(context.Background()); r.Applied != 1 || r.Seen != 2 {
		t.Errorf("reported as applied %d of %d", r.Applied, r.Seen)
	}
	if r := n.phase("m/web"); r.Phase != host.PhaseRunning || !strings.Contains(r.Message, "put back") {
		t.Errorf("reported as %+v", r)
	}
	// What failed is not tried again by itself, nor after a restart of the host.
	n.restart()
	if outcome, _ := n.converge(); outcome != host.OutcomeRolledBack {
		t.Errorf("the next pass says %s", outcome)
	}
	if after := n.container("m/web"); after.ID != before.ID {
		t.Error("what failed was tried again")
	}
	for i := range two {
		if two[i].ID == "m/web" {
			two[i].Command, two[i].Env = []string{"serve", ":80", "/config/version"}, nil
		}
	}
	n.mustApply(two...)
	if got := get(t, n.web); got != "2" {
		t.Errorf("the repaired one answers %q", got)
	}
}

func TestServiceComesBackWithTheArchiveItWorkedWith(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	program := app(t)
	port := freePort(t)
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	declare := func(files map[string]string) []schema.Resource {
		source, digest := n.pushArchive(files)
		return []schema.Resource{
			{ID: "m/tree", Type: schema.TypeArchive, Path: "/srv/tree", Source: source, Digest: digest},
			{
				ID: "m/s", Type: schema.TypeService, Exec: "/srv/tree/app", After: []string{"m/tree"},
				Args:   []string{"serve", fmt.Sprintf("127.0.0.1:%d", port), "/srv/tree/version"},
				Health: &schema.Health{HTTP: url, Window: 3},
			},
		}
	}
	n.mustApply(declare(map[string]string{"app*": program, "version": "1"})...)
	outcome, cause := n.apply(declare(map[string]string{"app*": "#!/bin/sh\necho broken; exit 9\n", "version": "2"})...)
	if outcome != host.OutcomeRolledBack || !strings.Contains(cause, "m/tree") {
		t.Fatalf("outcome %s: %s", outcome, cause)
	}
	eventually(t, "the service answers as before", func() bool { return get(t, url) == "1" })
	if steps, err := n.host.Plan(context.Background()); err != nil || len(steps) != 0 {
		t.Errorf("still to do: %v %v", steps, err)
	}
	if r := n.phase("m/s"); !strings.Contains(r.Message, "broken") {
		t.Errorf("the last words are not reported: %+v", r)
	}
}

func TestForeignThingsAreRefusedByNameAndLeft(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	cli, err := client.New(client.WithHost(n.config.Engine))
	check(t, err)
	defer cli.Close()
	n.mustApply(schema.Resource{ID: "m/first", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}})
	name := engine.Name(n.name, "m/c")
	created, err := cli.ContainerCreate(context.Background(), client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: n.pulled(n.image), Cmd: []string{"run"}},
	})
	check(t, err)
	t.Cleanup(func() { _ = n.engine.Remove(context.Background(), created.ID) })
	check(t, os.MkdirAll(n.path("/etc/mesh/m"), 0o755))
	check(t, os.WriteFile(n.path("/etc/mesh/m/f"), []byte("somebody's"), 0o640))
	check(t, os.MkdirAll(n.path("/srv/tree"), 0o755))
	source, digest := n.pushArchive(map[string]string{"x": "y"})
	outcome, _ := n.apply(
		schema.Resource{ID: "m/first", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}},
		schema.Resource{ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}},
		schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("ours")},
		schema.Resource{ID: "m/tree", Type: schema.TypeArchive, Path: "/srv/tree", Source: source, Digest: digest},
	)
	if outcome != host.OutcomeFailed {
		t.Errorf("outcome %s", outcome)
	}
	for id, word := range map[string]string{"m/c": name, "m/f": "/etc/mesh/m/f", "m/tree": "/srv/tree"} {
		if r := n.phase(id); r.Phase != host.PhaseFailed || !strings.Contains(r.Message, word) {
			t.Errorf("%s reported as %+v", id, r)
		}
	}
	if got := n.read("/etc/mesh/m/f"); got != "somebody's" {
		t.Errorf("the file now holds %q", got)
	}
	if _, err := n.engine.Inspect(context.Background(), created.ID); err != nil {
		t.Errorf("the container was touched: %v", err)
	}
	n.mustApply()
	if got := n.read("/etc/mesh/m/f"); got != "somebody's" {
		t.Errorf("the file went with the declaration")
	}
}

func TestKilledContainerIsStartedAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	server := schema.Resource{ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}}
	n.mustApply(server)
	cli, err := client.New(client.WithHost(n.config.Engine))
	check(t, err)
	defer cli.Close()
	id := n.container("m/c").ID
	_, err = cli.ContainerKill(context.Background(), id, client.ContainerKillOptions{Signal: "KILL"})
	check(t, err)
	eventually(t, "it is down", func() bool { return !n.container("m/c").Running() })
	n.converge()
	if after := n.container("m/c"); after.ID != id || !after.Running() {
		t.Errorf("it is %+v", after)
	}
	check(t, n.engine.Remove(context.Background(), id))
	n.converge()
	if !n.container("m/c").Running() {
		t.Error("a container that was removed is not made again")
	}
}

func TestRestartLoopIsAFailure(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	outcome, cause := n.apply(
		schema.Resource{ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"exit", "3"}},
		schema.Resource{ID: "m/once", Type: schema.TypeContainer, Image: n.image, Command: []string{"exit", "0"}, Restart: "no"},
		schema.Resource{ID: "m/well", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}},
		schema.Resource{ID: "m/next", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}, After: []string{"m/c"}},
	)
	once := n.container("m/once")
	if outcome != host.OutcomeFailed || !strings.Contains(cause, "m/c") || !strings.Contains(cause, "words before the end") {
		t.Errorf("outcome %s: %s", outcome, cause)
	}
	if r := n.phase("m/c"); r.Phase != host.PhaseFailing && r.Phase != host.PhaseFailed {
		t.Errorf("reported as %+v", r)
	}
	if r := n.phase("m/once"); r.Phase != host.PhaseStopped {
		t.Errorf("one that is done is reported as %+v", r)
	}
	if r := n.phase("m/well"); r.Phase != host.PhaseRunning {
		t.Errorf("one that works is reported as %+v", r)
	}
	// Later passes, also of another process, do not take what restarts for what works.
	for range 2 {
		if outcome, cause := n.converge(); outcome != host.OutcomeFailed || !strings.Contains(cause, "m/c") {
			t.Errorf("a later pass says %s: %s", outcome, cause)
		}
		if r := n.phase("m/next"); r.Phase != host.PhaseFailed || !strings.Contains(r.Message, "waits for m/c") {
			t.Errorf("what comes after it is reported as %+v", r)
		}
		n.restart()
	}
	if now := n.container("m/once"); now.ID != once.ID || !now.Started.Equal(once.Started) {
		t.Error("one that is done was run again")
	}
}

func TestServiceIsRestartedAndOutlivesTheHost(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, _ := n.twoVersions("")
	n.mustApply(one...)
	pid := func() int {
		var p int
		_, err := fmt.Sscan(processID(t, n.root+"/srv/tree/app"), &p)
		check(t, err)
		return p
	}
	first := pid()
	check(t, syscall.Kill(first, syscall.SIGKILL))
	eventually(t, "the service answers again", func() bool { return get(t, n.service) == "1" })
	second := pid()
	if second == first {
		t.Fatal("it did not die")
	}
	if r := n.phase("m/daemon"); r.Restarts != 1 || r.LastExit == nil || *r.LastExit != 128+int(syscall.SIGKILL) {
		t.Errorf("reported as %+v", r)
	}
	n.restart()
	n.converge()
	if pid() != second {
		t.Error("the next life of the host started it anew")
	}
	// It is supervised by the next life as well.
	check(t, syscall.Kill(second, syscall.SIGKILL))
	eventually(t, "the service answers again", func() bool { return get(t, n.service) == "1" })
	if pid() == second {
		t.Error("it did not die")
	}
}

func TestServiceThatDiedWhileTheHostWasDownRunsAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, _ := n.twoVersions("")
	n.mustApply(one...)
	n.close()
	var pid int
	_, err := fmt.Sscan(processID(t, n.root+"/srv/tree/app"), &pid)
	check(t, err)
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "it is gone", func() bool { return strings.Contains(get(t, n.service), "refused") })
	n.open()
	n.converge()
	if got := get(t, n.service); got != "1" {
		t.Errorf("the service answers %q", got)
	}
}

func TestServiceThatIsDoneIsNotRunAgainByTheNextHost(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	runs := filepath.Join(t.TempDir(), "runs")
	n.mustApply(schema.Resource{
		ID: "m/once", Type: schema.TypeService, Exec: "/bin/sh", Args: []string{"-c", "echo run >>" + runs}, Restart: "on-failure",
	})
	n.restart()
	n.converge()
	if text, err := os.ReadFile(runs); err != nil || string(text) != "run\n" {
		t.Errorf("it ran as %q, %v", text, err)
	}
}

// A check is over when it ends, whatever it has left behind.
func TestCheckThatLeavesAChildBehindEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.mustApply(schema.Resource{
			ID: "m/s", Type: schema.TypeService, Exec: "/bin/sleep", Args: []string{"3600"},
			Health: &schema.Health{Exec: []string{"/bin/sh", "-c", "sleep 3599 & exit 0"}, Window: 10},
		})
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the pass waits for the check's child")
	}
}

func TestGenerations(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	file := func(content string) schema.Resource {
		return schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text(content)}
	}
	first, second := n.declaration(file("one")), n.declaration(file("two"))
	check(t, n.host.Accept("d", encode(t, second)))
	n.converge()
	if err := n.host.Accept("d", encode(t, first)); !errors.Is(err, host.ErrOld) {
		t.Errorf("an older generation: %v", err)
	}
	check(t, n.host.Accept("d", encode(t, second))) // the same again
	twin := n.declaration(file("other"))
	twin.Generation = second.Generation
	n.sign(&twin)
	n.refuses(encode(t, twin), twin.Hash, second.Hash)
	foreign := n.declaration(file("foreign"))
	foreign.Node = "another"
	n.sign(&foreign)
	n.refuses(encode(t, foreign), "another")
	forged := n.declaration(file("forged"))
	forged.Resources[0].Content = text("really forged")
	n.refuses(encode(t, forged), "signed")
	epoch := n.declaration(file("new epoch"))
	epoch.Epoch, epoch.Generation = 2, 1
	n.sign(&epoch)
	check(t, n.host.Accept("d", encode(t, epoch)))
	n.converge()
	if got := n.read("/etc/mesh/m/f"); got != "new epoch" {
		t.Errorf("the file holds %q", got)
	}
	n.gen = 100
	if err := n.host.Accept("d", encode(t, n.declaration(file("old epoch")))); !errors.Is(err, host.ErrOld) {
		t.Errorf("an older epoch: %v", err)
	}
	// The floor outlives the cache.
	n.close()
	check(t, os.Remove(filepath.Join(n.layout.State, "state.json")))
	n.open()
	if err := n.host.Accept("d", encode(t, second)); !errors.Is(err, host.ErrOld) {
		t.Errorf("after the cache was lost an older epoch: %v", err)
	}
}

func TestSealedForAnotherFieldIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	moved := n.seal("other", "s", "x")
	moved.Info = n.seal("m", "s", "x").Info
	_, stranger, err := pki.NewSealingKey()
	check(t, err)
	foreign, err := pki.Seal(stranger, moved.Info, []byte("x"))
	check(t, err)
	for _, sealed := range []*schema.Sealed{n.seal("other", "s", "x"), moved, &foreign} {
		outcome, cause := n.apply(schema.Resource{ID: "m/secret.s", Type: schema.TypeFile, Path: "/etc/mesh/m/s", Sealed: sealed})
		if outcome != host.OutcomeFailed || !strings.Contains(cause, "m/secret.s") {
			t.Errorf("outcome %s: %s", outcome, cause)
		}
		if _, err := os.Stat(n.path("/etc/mesh/m/s")); err == nil {
			t.Error("something was written")
		}
	}
}

func TestChangedByHandIsReportedAndRepairedWhenAsked(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	file := schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("a\nb\n")}
	n.mustApply(file)
	check(t, os.WriteFile(n.path(file.Path), []byte("a\nc\n"), 0o644))
	n.converge()
	if r := n.phase("m/f"); !strings.Contains(r.Drift, `line 2 is "c", declared "b"`) {
		t.Errorf("reported as %+v", r)
	}
	if got := n.read(file.Path); got != "a\nc\n" {
		t.Errorf("it was repaired unasked: %q", got)
	}
	n.mustApply(file)
	if got := n.read(file.Path); got != "a\nb\n" {
		t.Errorf("a push did not repair it: %q", got)
	}
}

func TestIdentityIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	layout := host.NewLayout(t.TempDir())
	first, err := host.LoadIdentity(layout)
	check(t, err)
	again, err := host.LoadIdentity(layout)
	check(t, err)
	if first.Fingerprint() != again.Fingerprint() {
		t.Error("the keys changed")
	}
	name := filepath.Join(layout.State, "identity", "sealing.key")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	check(t, os.WriteFile(name, []byte("damaged"), 0o600))
	if _, err := host.LoadIdentity(layout); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a damaged key: %v", err)
	}
	if data, _ := os.ReadFile(name); string(data) != "damaged" {
		t.Error("the damaged key was overwritten")
	}
}

func TestTwoHostsOnOneDirectory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if _, err := host.Open(n.config, n.layout, testLog(t)); !errors.Is(err, host.ErrRunning) {
		t.Errorf("a second host: %v", err)
	}
}

// An engine's images are pruned by others too: what was staged may be gone when its turn comes.
func TestImagePrunedBetweenStagingAndCreationIsPulledAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pruned := n.pushApp("modules/app/pruned")
	t.Cleanup(func() { _ = n.engine.RemoveImage(context.Background(), n.pulled(pruned)) })
	removed := make(chan error, 1)
	prune := sync.OnceFunc(func() {
		removed <- n.engine.RemoveImage(context.Background(), n.pulled(pruned))
	})
	health := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { prune() }))
	t.Cleanup(health.Close)
	n.mustApply(
		schema.Resource{
			ID: "m/first", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"},
			Health: &schema.Health{HTTP: health.URL, Window: 3},
		},
		schema.Resource{ID: "m/second", Type: schema.TypeContainer, Image: pruned, Command: []string{"run"}, After: []string{"m/first"}},
	)
	check(t, <-removed)
	if second := n.container("m/second"); !second.Running() {
		t.Errorf("the second container: %+v", second)
	}
}
