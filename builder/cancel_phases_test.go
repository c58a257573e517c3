package builder_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// cancelBound is how long cancelling may take: the 5 s that are promised, and as much again for
// a machine that is busy with other tests.
const cancelBound = 10 * time.Second

// stuck is a build that stops at one place until it is cancelled there.
type stuck struct {
	*rig
	repo    *testenv.Repo
	job     schema.Job
	reached chan struct{}
	once    sync.Once
	// sleeper is the last argument of a process of the build's, which nobody else has.
	sleeper string
}

// here says that the build has come to its place.
func (s *stuck) here() { s.once.Do(func() { close(s.reached) }) }

// module commits a module called m.
func (s *stuck) module(artifacts string, files map[string]string) {
	s.repo.Write("module.json", `{"name": "m", "artifacts": `+artifacts+`}`)
	for name, text := range files {
		s.repo.Write(name, text)
	}
	s.repo.Commit("a module")
}

// hang answers a request by waiting for its end.
func (s *stuck) hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // a server notices who hangs up once the body is read
	s.here()
	<-r.Context().Done()
}

// store has the builder's registry hang at the requests that match.
func (s *stuck) store(match func(*http.Request) bool) {
	f := newFront(s.t.(*testing.T), s.registry)
	f.left.Store(1 << 40)
	f.instead = func(w http.ResponseWriter, r *http.Request) bool {
		if !match(r) {
			return false
		}
		s.hang(w, r)
		return true
	}
	s.Registry = f.client
}

// outside gives the reference of an image in a registry outside, which hangs at the requests
// that match.
func (s *stuck) outside(match func(*http.Request) bool) string {
	outside := registrytest.Start(s.t)
	image, err := outside.Client(s.t).PushImageLayout(s.t.Context(), "library/tiny", tinyLayout(s.t, outside.Client(s.t)))
	if err != nil {
		s.t.Fatal(err)
	}
	way := &borrowed{RoundTripper: trusting(s.t.(*testing.T), outside), token: outside.Token("*", registry.ActionPull)}
	config := s.registry.Config()
	config.Outside = roundTrip(func(r *http.Request) (*http.Response, error) {
		if match(r) {
			s.here()
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return way.RoundTrip(r)
	})
	s.Registry = registrytest.Client(s.t, config)
	return outside.Address + "/library/tiny:" + registry.ContentTag(image.Digest)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// whenSaid waits for the build to say a line that contains text.
func (s *stuck) whenSaid(text string) func(schema.Progress) {
	return func(p schema.Progress) {
		if strings.Contains(p.Line, text) {
			s.here()
		}
	}
}

func blobs(r *http.Request) bool     { return strings.Contains(r.URL.Path, "/blobs/") }
func manifests(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }
func writes(r *http.Request) bool    { return r.Method == http.MethodPut || r.Method == http.MethodPatch }
func both(a, b func(*http.Request) bool) func(*http.Request) bool {
	return func(r *http.Request) bool { return a(r) && b(r) }
}

// atPhase stops a build that has nothing to wait for by itself at the beginning of a phase.
func atPhase(phase schema.Phase) func(*stuck) func(schema.Progress) {
	return func(s *stuck) func(schema.Progress) {
		s.module(`{"site": {"kind": "archive", "path": "site"}}`, map[string]string{"site/x": "x"})
		s.OnPhase = func(p schema.Phase) {
			if p == phase {
				s.here()
				time.Sleep(300 * time.Millisecond) // the cancellation comes meanwhile
			}
		}
		return nil
	}
}

// places are those at which a build is cancelled, by phase. Announcing is the worker's, and too
// late: TestCancelledWhileItAnnouncesIsAnnounced.
var places = map[schema.Phase]map[string]func(s *stuck) func(schema.Progress){
	schema.PhaseClone: {
		"a server that is silent": func(s *stuck) func(schema.Progress) {
			url, asked := silent(s.t.(*testing.T))
			s.job.Repository = url
			go func() { <-asked; s.here() }()
			return nil
		},
	},
	schema.PhaseRead: {
		"comparing with the mesh's manifest": func(s *stuck) func(schema.Progress) {
			s.module(`{"site": {"kind": "archive", "path": "site"}}`, map[string]string{"site/x": "x"})
			made := s.built(schema.Job{Repository: s.repo.URL()})
			s.job.Current = current(made)
			s.store(manifests)
			return nil
		},
	},
	schema.PhasePlan: {"": atPhase(schema.PhasePlan)},
	schema.PhaseBuild: {
		"archive": atPhase(schema.PhaseBuild),
		"upstream that is looked up": func(s *stuck) func(schema.Progress) {
			s.module(fmt.Sprintf(`{"tiny": {"kind": "upstream", "reference": %q}}`, s.outside(manifests)), nil)
			return nil
		},
		"bundle on the machine": func(s *stuck) func(schema.Progress) {
			s.sleeps()
			return s.whenSaid("compiling for long")
		},
		"bundle in a container": func(s *stuck) func(schema.Progress) {
			s.withEngine()
			s.Toolchains = s.containers(map[string]string{toolchain.Node: s.carry(samples(s.t)[toolchain.Node])})
			if _, err := s.Toolchains[toolchain.Node].Version(s.t.Context()); err != nil {
				s.t.Fatal(err)
			}
			s.sleeps()
			return s.whenSaid("compiling for long")
		},
		"image whose base does not come": func(s *stuck) func(schema.Progress) {
			s.withEngine()
			s.module(`{"image": {"kind": "image", "dockerfile": "Dockerfile"}}`, map[string]string{"Dockerfile": "FROM " + s.outside(blobs) + "\n"})
			return nil
		},
		"image whose command never ends": func(s *stuck) func(schema.Progress) {
			s.withEngine()
			writeProgram(s.t, s.repo, "prog", compile(s.t, "package main\n\nimport (\n\t\"fmt\"\n\t\"time\"\n)\n\nfunc main() { fmt.Println(\"building for long\"); time.Sleep(time.Hour) }\n"))
			s.module(`{"image": {"kind": "image", "dockerfile": "Dockerfile"}}`, map[string]string{
				"Dockerfile": "FROM scratch AS first\nCOPY prog /prog\nFROM scratch\nCOPY --from=first /prog /prog\nRUN [\"/prog\"]\n",
			})
			return s.whenSaid("building for long")
		},
	},
	schema.PhaseVerify: {"": atPhase(schema.PhaseVerify)},
	schema.PhasePublish: {
		"an archive's upload": func(s *stuck) func(schema.Progress) {
			s.module(`{"site": {"kind": "archive", "path": "site"}}`, map[string]string{"site/x": strings.Repeat("x", 1<<20)})
			s.store(both(blobs, writes))
			return nil
		},
		"the manifest": func(s *stuck) func(schema.Progress) {
			s.module(`{"site": {"kind": "archive", "path": "site"}}`, map[string]string{"site/x": "x"})
			s.store(both(manifests, writes))
			return nil
		},
		"the copy of an upstream": func(s *stuck) func(schema.Progress) {
			var publishing atomic.Bool
			s.OnPhase = func(p schema.Phase) { publishing.Store(p == schema.PhasePublish) }
			reference := s.outside(func(r *http.Request) bool { return publishing.Load() && blobs(r) })
			s.module(fmt.Sprintf(`{"tiny": {"kind": "upstream", "reference": %q}}`, reference), nil)
			return nil
		},
	},
}

// sleeps commits a Node bundle whose build script waits in a child of a child.
func (s *stuck) sleeps() {
	s.sleeper = fmt.Sprint(1_000_000_000 + time.Now().UnixNano()%1_000_000_000)
	s.module(`{"prog": {"kind": "bundle", "path": "prog"}}`, map[string]string{
		"prog/package.json":      `{"name": "hello", "version": "1.0.0", "main": "build.js", "scripts": {"build": "node build.js"}}`,
		"prog/package-lock.json": `{"name": "hello", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {"": {"name": "hello", "version": "1.0.0"}}}`,
		"prog/build.js": `require("child_process").spawn(process.execPath, ["-e", "setTimeout(() => {}, 1e9)", "` + s.sleeper + `"], {detached: true, stdio: "ignore"});
console.log("compiling for long"); setTimeout(() => {}, 1e9);`,
	})
}

func TestABuildIsCancelledInEveryPhase(t *testing.T) {
	t.Parallel()
	for _, phase := range schema.Phases {
		if phase == schema.PhaseAnnounce {
			continue
		}
		if len(places[phase]) == 0 {
			t.Errorf("no build is cancelled in phase %s", phase)
		}
		for place, stop := range places[phase] {
			t.Run(strings.TrimSpace(string(phase)+" "+place), func(t *testing.T) {
				t.Parallel()
				s := &stuck{rig: newRig(t, "one", registrytest.Start(t)), repo: testenv.Git(t), reached: make(chan struct{})}
				progress := stop(s)
				if s.job.Repository == "" {
					s.job.Repository = s.repo.URL()
				}
				s.job.Schema, s.job.ID = schema.Version, "cancelled"
				before := published(t, s.registry.Dir)
				s.cancel(phase, progress)
				s.nothingLeft(before)
			})
		}
	}
}

// cancel runs the build, and cancels it at its place.
func (s *stuck) cancel(phase schema.Phase, progress func(schema.Progress)) {
	t := s.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan schema.Result, 1)
	go func() { ended <- s.Build(ctx, s.job, progress) }()
	select {
	case <-s.reached:
	case r := <-ended:
		t.Fatalf("ended %s before it was cancelled: %+v\n%s", r.Outcome, r.Error, r.Log)
	}
	began := time.Now()
	cancel()
	result := <-ended
	took := time.Since(began)
	if result.Outcome != schema.OutcomeCancelled || result.Error.Reason != builder.ReasonCancelled || !strings.HasSuffix(result.Error.Message, string(phase)) {
		t.Errorf("ended %s: %+v\n%s", result.Outcome, result.Error, result.Log)
	}
	if took > cancelBound {
		t.Errorf("cancelling took %s", took)
	}
	t.Logf("cancelled in %s", took)
}

// nothingLeft looks everywhere a build could leave something.
func (s *stuck) nothingLeft(before []string) {
	t := s.t.(*testing.T)
	t.Helper()
	if left := inWork(t, s.rig); len(left) > 0 {
		t.Errorf("directories left: %q", left)
	}
	if after := published(t, s.registry.Dir); !slices.Equal(before, after) {
		t.Errorf("the registry has %q, before %q", after, before)
	}
	if s.sleeper != "" {
		within(t, "its processes to end", func() bool { return !runs(t, s.sleeper) })
	}
	if s.Engine != nil {
		for _, left := range inEngine(t, s.owner) {
			t.Errorf("left in the engine: %s", left)
		}
	}
}

// published lists the tags and the unfinished uploads of a registry's store.
func published(t *testing.T, dir string) (all []string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.Contains(name, "/tags/") || strings.Contains(name, "/_uploads/")) {
			all = append(all, strings.TrimPrefix(name, dir))
		}
		return nil
	})
	return all
}

// within waits for something that follows by itself.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(cancelBound); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// runs says whether any process of the machine has a word in its command line.
func runs(t *testing.T, word string) bool {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		line, err := os.ReadFile(name)
		if err == nil && bytes.Contains(line, []byte(word)) {
			return true
		}
	}
	return false
}

// inEngine lists what the engine holds of a builder.
func inEngine(t *testing.T, owner string) (all []string) {
	t.Helper()
	api, err := client.New(client.WithHost(testenv.Engine(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	label := client.Filters{}.Add("label", engine.Label+"="+owner)
	containers, err := api.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: label})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers.Items {
		all = append(all, "container "+c.ID)
	}
	volumes, err := api.VolumeList(t.Context(), client.VolumeListOptions{Filters: label})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range volumes.Items {
		all = append(all, "volume "+v.Name)
	}
	for _, filter := range []client.Filters{label, client.Filters{}.Add("reference", "mesh-build/"+owner)} {
		images, err := api.ImageList(t.Context(), client.ImageListOptions{All: true, Filters: filter})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range images.Items {
			all = append(all, fmt.Sprintf("image %s %q", i.ID, i.RepoTags))
		}
	}
	return all
}
