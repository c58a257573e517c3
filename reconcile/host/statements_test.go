package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

// refuses sends bytes that must be refused with every one of the words, and changes nothing.
func (n *node) refuses(data []byte, words ...string) {
	n.t.Helper()
	err := n.host.Accept("declaration.json", data)
	if !errors.Is(err, host.ErrRefused) {
		n.t.Fatalf("not refused: %v", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			n.t.Errorf("the refusal does not say %q: %v", word, err)
		}
	}
	n.converge() // passes towards what was accepted before take nothing of the refusal away
	report := n.host.Report(context.Background())
	if report.Outcome != host.OutcomeRefused || report.Cause == "" || report.Refused == 0 {
		n.t.Errorf("the report says %q of generation %d, %q", report.Outcome, report.Refused, report.Cause)
	}
}

// altered is a signed declaration with its JSON changed before it is signed again would be
// possible; only the decoder stands in the way.
func altered(t testing.TB, d schema.Declaration, change func(map[string]any)) []byte {
	t.Helper()
	var raw map[string]any
	check(t, json.Unmarshal(encode(t, d), &raw))
	change(raw)
	return encode(t, raw)
}

func firstResource(raw map[string]any) map[string]any {
	return raw["resources"].([]any)[0].(map[string]any)
}

func TestS1_022_DeclarationWithArtifactIsRefusedByName(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	file := schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("one")}
	server := schema.Resource{ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}}
	n.mustApply(file, server)
	before := n.container("m/c")
	file.Content = text("two")
	data := altered(t, n.declaration(file, server), func(raw map[string]any) { firstResource(raw)["artifact"] = "config" })
	n.refuses(data, "resources[0].artifact")
	n.converge()
	if got := n.read("/etc/mesh/m/f"); got != "one" {
		t.Errorf("the file was changed to %q", got)
	}
	if after := n.container("m/c"); after.ID != before.ID || !after.Started.Equal(before.Started) {
		t.Error("the container was touched")
	}
}

func TestS1_025_NothingAHostIsSentCanSayBuild(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.declaration(schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("one")})
	n.refuses(altered(t, d, func(raw map[string]any) {
		raw["resources"] = []any{map[string]any{"id": "m/b", "type": "build"}}
	}), "build")
	n.refuses(altered(t, d, func(raw map[string]any) { raw["build"] = map[string]any{} }), "build")
	n.refuses(altered(t, d, func(raw map[string]any) { raw["builds"] = []any{} }), "builds")
}

func TestS1_047_MissingProgramOfAServiceIsFailedByName(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	outcome, cause := n.apply(
		schema.Resource{ID: "m/ghost", Type: schema.TypeService, Exec: "/usr/sbin/no-such-program"},
		schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("one")},
	)
	if outcome != host.OutcomeFailed || !strings.Contains(cause, "m/ghost") || !strings.Contains(cause, "/usr/sbin/no-such-program") {
		t.Errorf("outcome %s: %s", outcome, cause)
	}
	if r := n.phase("m/ghost"); r.Phase != host.PhaseFailed || !strings.Contains(r.Message, "/usr/sbin/no-such-program") {
		t.Errorf("reported as %+v", r)
	}
	if r := n.phase("m/f"); r.Phase != host.PhaseApplied {
		t.Errorf("the rest is held back: %+v", r)
	}
}

func TestS1_057_SecretIsItsOwnersFromTheFirstByte(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const path, plain = "/etc/mesh/m/secrets/broker", "the-canary-of-this-test"
	file := schema.Resource{ID: "m/secret.broker", Type: schema.TypeFile, Path: path, Mode: "0400", Sealed: n.seal("m", "broker", plain+"0")}
	server := schema.Resource{
		ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"},
		Mounts: []schema.Mount{{Source: "/etc/mesh/m/secrets", Target: "/secrets", ReadOnly: true}}, After: []string{"m/secret.broker"},
	}
	dir := filepath.Dir(n.path(path))
	var looks, wide atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries, _ := os.ReadDir(dir)
			for _, entry := range entries {
				info, err := entry.Info()
				if err != nil {
					continue
				}
				looks.Add(1)
				if mode := info.Mode().Perm(); mode != 0o400 && mode != 0o600 {
					wide.Store(int64(mode))
				}
			}
		}
	}()
	for i := range 20 {
		file.Sealed = n.seal("m", "broker", fmt.Sprint(plain, i))
		n.mustApply(file)
	}
	close(stop)
	<-stopped
	if looks.Load() < 100 || wide.Load() != 0 {
		t.Errorf("%d looks, widest mode %o", looks.Load(), wide.Load())
	}
	n.mustApply(file, server)
	if got := n.read(path); got != plain+"19" {
		t.Errorf("the file holds %q", got)
	}
	if info, err := os.Stat(n.path(path)); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("mode: %v %v", info.Mode(), err)
	}
	cli, err := client.New(client.WithHost(n.config.Engine))
	check(t, err)
	defer cli.Close()
	inspected, err := cli.ContainerInspect(context.Background(), n.container("m/c").ID, client.ContainerInspectOptions{})
	check(t, err)
	if bytes.Contains(inspected.Raw, []byte(plain)) {
		t.Error("the engine knows the secret")
	}
	// The one plaintext copy.
	check(t, filepath.WalkDir(n.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || name == n.path(path) {
			return err
		}
		data, err := os.ReadFile(name)
		if bytes.Contains(data, []byte(plain)) {
			t.Errorf("%s holds the secret", name)
		}
		return err
	}))
}

func TestS1_131_FilesAreReplacedAtomically(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	content := func(i int) string { return strings.Repeat(fmt.Sprint(i%10), 200_000) }
	file := schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text(content(0))}
	n.mustApply(file)
	inode := func() uint64 {
		info, err := os.Stat(n.path(file.Path))
		check(t, err)
		return info.Sys().(*syscall.Stat_t).Ino
	}
	var reads, torn atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			data, err := os.ReadFile(n.path(file.Path))
			reads.Add(1)
			if err != nil || len(data) != 200_000 || data[0] != data[len(data)-1] {
				torn.Add(1)
			}
		}
	}()
	for i := 1; i <= 30; i++ {
		before := inode()
		file.Content = text(content(i))
		n.mustApply(file)
		if inode() == before {
			t.Error("the file was written in place")
		}
	}
	close(stop)
	<-stopped
	if reads.Load() < 30 || torn.Load() != 0 {
		t.Errorf("%d of %d reads saw part of a file", torn.Load(), reads.Load())
	}
}

func TestS1_132_RestartOnOfAContainerIsRefusedByName(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	server := schema.Resource{ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}}
	config := schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("x")}
	server.RestartOn = []string{"m/f"}
	n.refuses(encode(t, n.declaration(server, config)), "resources[0].restart-on")
}

func TestS1_133_RestartOnRestartsAServiceOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	program := app(t)
	source, digest := n.pushArchive(map[string]string{"app*": program})
	port := freePort(t)
	tree := schema.Resource{ID: "m/tree", Type: schema.TypeArchive, Path: "/srv/tree", Source: source, Digest: digest}
	config := schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("one")}
	other := schema.Resource{ID: "m/o", Type: schema.TypeFile, Path: "/etc/mesh/m/o", Content: text("one")}
	service := schema.Resource{
		ID: "m/s", Type: schema.TypeService, Exec: "/srv/tree/app", Args: []string{"serve", fmt.Sprintf("127.0.0.1:%d", port), "/etc/mesh/m/f"},
		RestartOn: []string{"m/f"}, After: []string{"m/f", "m/tree"},
		Health: &schema.Health{TCP: fmt.Sprintf("127.0.0.1:%d", port)},
	}
	starts := func() int {
		data, err := os.ReadFile(filepath.Join(n.layout.State, "logs", "m.s.log"))
		check(t, err)
		return strings.Count(string(data), "started")
	}
	n.mustApply(tree, config, other, service)
	first := processID(t, n.root+"/srv/tree/app")
	other.Content = text("two")
	n.mustApply(tree, config, other, service)
	if again := processID(t, n.root+"/srv/tree/app"); again != first || starts() != 1 {
		t.Errorf("a file it does not name restarted it")
	}
	config.Content = text("two")
	n.mustApply(tree, config, other, service)
	n.converge()
	n.restart()
	n.converge()
	if again := processID(t, n.root+"/srv/tree/app"); again == first || starts() != 2 {
		t.Errorf("started %d times, process %s then %s", starts(), first, again)
	}
}

func TestS1_134_ChangedDefinitionRecreatesThatContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := schema.Resource{ID: "m/a", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}, Env: map[string]string{"X": "1"}}
	b := schema.Resource{ID: "m/b", Type: schema.TypeContainer, Image: n.image, Command: []string{"run"}}
	n.mustApply(a, b)
	beforeA, beforeB := n.container("m/a"), n.container("m/b")
	a.Env = map[string]string{"X": "2"}
	n.mustApply(a, b)
	if n.container("m/a").ID == beforeA.ID {
		t.Error("the changed one was kept")
	}
	if after := n.container("m/b"); after.ID != beforeB.ID || !after.Started.Equal(beforeB.Started) {
		t.Error("its neighbour was touched")
	}
	if _, err := n.engine.Inspect(context.Background(), beforeA.ID); !errors.Is(err, engine.ErrNotFound) {
		t.Error("the old one is still there")
	}
}

func TestS1_135_ChangedFileOfAMountTouchesNoContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := freePort(t)
	file := schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("one")}
	server := schema.Resource{
		ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"serve", ":80", "/config/f"},
		Mounts: []schema.Mount{{Source: "/etc/mesh/m", Target: "/config"}}, After: []string{"m/f"},
		Ports: []schema.Port{{Container: 80, Host: port, Address: "127.0.0.1"}},
		// Not by TCP: the engine's proxy takes connections before the program does.
		Health: &schema.Health{HTTP: fmt.Sprintf("http://127.0.0.1:%d/", port)},
	}
	n.mustApply(file, server)
	before := n.container("m/c")
	file.Content = text("two")
	n.mustApply(file, server)
	if got := get(t, fmt.Sprintf("http://127.0.0.1:%d/", port)); got != "two" {
		t.Errorf("inside one reads %q", got)
	}
	if after := n.container("m/c"); after.ID != before.ID || !after.Started.Equal(before.Started) {
		t.Error("the container was recreated or restarted")
	}
}

// blobServer serves bytes at any path.
func blobServer(t testing.TB, data []byte) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
	t.Cleanup(server.Close)
	return server.URL
}

func TestS1_137_AnArchiveComesFromWhateverServesIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	files := map[string]string{"index.html": "hello"}
	source, digest := n.pushArchive(files)
	tree := schema.Resource{ID: "m/a", Type: schema.TypeArchive, Path: "/srv/one", Source: source, Digest: digest}
	n.mustApply(tree)
	elsewhere := blobServer(t, tarOf(t, files))
	other := tree
	other.Path, other.Source = "/srv/two", elsewhere+"/anything"
	n.mustApply(other)
	if got := n.read("/srv/two/index.html"); got != "hello" {
		t.Errorf("unpacked %q", got)
	}
	if _, err := os.Lstat(n.path("/srv/one")); err == nil {
		t.Error("where it was before is still there")
	}
}

func TestS1_138_OtherBytesFailByNameAndThePreviousStays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	source, digest := n.pushArchive(map[string]string{"index.html": "good"})
	tree := schema.Resource{ID: "m/site", Type: schema.TypeArchive, Path: "/srv/site", Source: source, Digest: digest}
	n.mustApply(tree)
	bad := tree
	bad.Digest = schema.Digest([]byte("what was declared"))
	bad.Source = blobServer(t, tarOf(t, map[string]string{"index.html": "evil"})) + "/blob"
	outcome, cause := n.apply(bad)
	if outcome != host.OutcomeFailed || !strings.Contains(cause, "m/site") || !strings.Contains(cause, bad.Digest) {
		t.Errorf("outcome %s: %s", outcome, cause)
	}
	if r := n.phase("m/site"); r.Phase != host.PhaseFailed || r.Message == "" {
		t.Errorf("reported as %+v", r)
	}
	if got := n.read("/srv/site/index.html"); got != "good" {
		t.Errorf("the previous one was replaced by %q", got)
	}
}

func TestRunningIsNotHealthy(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := freePort(t)
	n.mustApply(
		schema.Resource{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: text("one")},
		schema.Resource{
			ID: "m/c", Type: schema.TypeContainer, Image: n.image, Command: []string{"serve", ":80", "/config/f"},
			Mounts: []schema.Mount{{Source: "/etc/mesh/m", Target: "/config"}},
			Ports:  []schema.Port{{Container: 80, Host: port, Address: "127.0.0.1"}},
			Health: &schema.Health{HTTP: fmt.Sprintf("http://127.0.0.1:%d/", port), Interval: 1},
		})
	if r := n.phase("m/c"); r.Phase != host.PhaseRunning {
		t.Fatalf("reported as %+v", r)
	}
	cli, err := client.New(client.WithHost(n.config.Engine))
	check(t, err)
	defer cli.Close()
	id := n.container("m/c").ID
	_, err = cli.ContainerKill(context.Background(), id, client.ContainerKillOptions{Signal: "STOP"})
	check(t, err)
	eventually(t, "a stopped process is reported as failing", func() bool {
		r := n.phase("m/c")
		return r.Phase == host.PhaseFailing && r.Message != ""
	})
	if !n.container("m/c").Running() {
		t.Error("it does not even run, so nothing was shown")
	}
	_, err = cli.ContainerKill(context.Background(), id, client.ContainerKillOptions{Signal: "CONT"})
	check(t, err)
	eventually(t, "it is well again", func() bool { return n.phase("m/c").Phase == host.PhaseRunning })
}

var _ = time.Second
