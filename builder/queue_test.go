package builder_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// The tests of this file share the one queue of builds and do not run in parallel.

func TestS1_004_AModuleOfRequirementsAloneBuildsToAManifest(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	repo.Write("networking/module.json", `{"name": "networking", "requires": ["private-network", "name-resolution"]}`)
	repo.Commit("nothing but requirements")
	result := r.built(schema.Job{Repository: repo.URL(), Path: "networking"})
	manifest, err := r.client.Manifest(t.Context(), "networking", result.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Artifacts) != 0 || len(manifest.Resources) != 0 || len(manifest.Requires) != 2 || manifest.Requires[0].Name != "private-network" {
		t.Errorf("manifest %+v", manifest)
	}
}

// Requests are not addressed: whichever builder is free takes the next, and each is done once.
func TestS1_031_AllBuildersReadTheOneQueue(t *testing.T) {
	const builders, requests = 3, 20
	mesh := buildertest.New(t)
	reg := registrytest.Start(t)
	repo := testenv.Git(t)
	for i := range requests {
		writeSite(repo, fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i))
	}
	repo.Commit("modules")
	var mu sync.Mutex
	clones := 0
	for i := range builders {
		name := fmt.Sprintf("b%d", i)
		r := newRig(t, name, reg)
		r.OnPhase = func(p schema.Phase) {
			if p == schema.PhaseClone {
				mu.Lock()
				clones++
				mu.Unlock()
			}
		}
		work(t, r, mesh.Dial(mesh.BuilderURL(name)))
	}
	for i := range requests {
		mesh.Order(schema.Job{ID: fmt.Sprintf("job-%d", i), Repository: repo.URL(), Path: fmt.Sprintf("m%d", i)})
	}
	results, by := map[string]int{}, map[string]int{}
	for range requests {
		result := mesh.Next()
		results[result.ID]++
		by[result.Builder]++
		if result.Outcome != schema.OutcomeBuilt {
			t.Errorf("%s: %s %+v", result.ID, result.Outcome, result.Error)
		}
	}
	mesh.Settled()
	if len(results) != requests || clones != requests {
		t.Errorf("%d requests gave results for %d, with %d clones", requests, len(results), clones)
	}
	if len(by) != builders {
		t.Errorf("builds by %v, of %d builders", by, builders)
	}
	select {
	case again := <-mesh.Results:
		t.Errorf("one result more: %s", again.ID)
	default:
	}
}

func TestS1_032_EachRequestIsDoneByOneBuilder(t *testing.T) {
	mesh := buildertest.New(t)
	reg := registrytest.Start(t)
	repo := testenv.Git(t)
	writeSite(repo, "m", "m")
	repo.Commit("a module")
	begun := make(chan string, 4)
	for _, name := range []string{"one", "two"} {
		r := newRig(t, name, reg)
		r.OnPhase = func(p schema.Phase) {
			if p == schema.PhaseClone {
				begun <- name
			}
		}
		work(t, r, mesh.Dial(mesh.BuilderURL(name)))
	}
	mesh.Order(schema.Job{ID: "only", Repository: repo.URL(), Path: "m"})
	result := mesh.Next()
	mesh.Settled()
	if first := <-begun; result.Builder != first {
		t.Errorf("begun by %s, answered by %s", first, result.Builder)
	}
	if len(begun) != 0 {
		t.Errorf("begun by another too: %s", <-begun)
	}
}

// relay passes connections on to an address until it is cut.
type relay struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	cut      bool
	open     []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, to: to}
	var pumps sync.WaitGroup
	pumps.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			cut := r.cut
			r.mu.Unlock()
			far, err := net.Dial("tcp", to)
			if cut || err != nil {
				near.Close()
				continue
			}
			r.mu.Lock()
			r.open = append(r.open, near, far)
			r.mu.Unlock()
			pumps.Go(func() { pump(near, far) })
			pumps.Go(func() { pump(far, near) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.set(true)
		pumps.Wait()
	})
	return r
}

func pump(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	to.Close()
	from.Close()
}

// set cuts the line or heals it.
func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	if cut {
		for _, conn := range r.open {
			conn.Close()
		}
		r.open = nil
	}
}

// listening counts the sockets this process accepts connections on.
func listening(t *testing.T) []string {
	t.Helper()
	var found []string
	inodes := map[string]bool{}
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if target, err := os.Readlink(name); err == nil && strings.HasPrefix(target, "socket:[") {
			inodes[strings.Trim(strings.TrimPrefix(target, "socket:"), "[]")] = true
		}
	}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == "0A" && inodes[fields[9]] {
				found = append(found, fields[1])
			}
		}
	}
	slices.Sort(found)
	return found
}

func TestS1_026_ABuilderTakesWorkFromTheBrokerAndFromNowhereElse(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "m", "m")
	repo.Commit("a module")
	url := repo.URL()
	line := newRelay(t, mesh.Host)
	before := listening(t)
	begun := make(chan struct{}, 4)
	r.OnPhase = func(p schema.Phase) {
		if p == schema.PhaseClone {
			begun <- struct{}{}
		}
	}
	conn := mesh.Dial(strings.Replace(mesh.BuilderURL("one"), mesh.Host, line.listener.Addr().String(), 1))
	work(t, r, conn)
	mesh.Order(schema.Job{ID: "first", Repository: url, Path: "m"})
	if first := mesh.Next(); first.ID != "first" {
		t.Fatalf("result %s", first.ID)
	}
	<-begun
	if now := listening(t); !slices.Equal(now, before) {
		t.Errorf("a builder at work accepts connections on %v, without one on %v", now, before)
	}

	line.set(true)
	mesh.Order(schema.Job{ID: "second", Repository: url, Path: "m"})
	waiting := func() bool {
		state, err := mesh.Controller.Inspect(t.Context(), bus.Builds)
		return err == nil && state.Ready == 1 && state.Consumers == 0
	}
	for deadline := time.Now().Add(buildertest.Patience); !waiting(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the build does not wait in the queue")
		}
	}
	if len(begun) != 0 {
		t.Error("a build began with the broker cut off")
	}
	line.set(false)
	if second := mesh.Next(); second.ID != "second" {
		t.Errorf("after the line healed: %s", second.ID)
	}
	mesh.Settled()
}
