package builder_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// hostileProgram is what a Dockerfile runs; its first argument says what it does.
const hostileProgram = `package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

func main() {
	signal.Ignore()
	switch os.Args[1] {
	case "fork":
		started := 0
		for range 20000 {
			if exec.Command("/hostile", "sleep").Start() == nil {
				started++
			} else if started > 0 {
				break
			}
		}
		fmt.Println("started", started, "processes")
	case "memory":
		var all [][]byte
		for range 1024 {
			piece := make([]byte, 1<<20)
			for i := range piece {
				piece[i] = 1
			}
			all = append(all, piece)
		}
		fmt.Println("took", len(all), "MiB")
	case "disk":
		f, err := os.Create("/fill")
		for piece := make([]byte, 1<<20); err == nil; {
			_, err = f.Write(piece)
		}
		fmt.Println(err)
	case "flood":
		for piece := make([]byte, 1<<16); ; {
			for i := range piece {
				piece[i] = 'x'
			}
			os.Stdout.Write(piece)
		}
	default:
		time.Sleep(time.Hour)
	}
}
`

// hostileSteps are what a Dockerfile's step may do to its machine.
var hostileSteps = map[string]struct {
	prepare func(*testing.T, *rig, *schema.Job)
	reason  builder.Reason
	check   func(*testing.T, schema.Result)
}{
	"sleep": {func(_ *testing.T, _ *rig, job *schema.Job) { job.Deadline = time.Now().Add(8 * time.Second) }, builder.ReasonDeadline, nil},
	"flood": {func(_ *testing.T, _ *rig, job *schema.Job) { job.Deadline = time.Now().Add(8 * time.Second) }, builder.ReasonDeadline,
		func(t *testing.T, result schema.Result) {
			if len(result.Log) > 64<<10 {
				t.Errorf("the log has %d bytes", len(result.Log))
			}
		}},
	"memory": {func(_ *testing.T, r *rig, _ *schema.Job) { r.Limits.Memory = 64 << 20 }, builder.ReasonImage, nil},
	"disk": {func(t *testing.T, r *rig, _ *schema.Job) {
		root, err := r.Engine.Root(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var disk syscall.Statfs_t
		if err := syscall.Statfs(root, &disk); err != nil {
			t.Fatal(err)
		}
		r.MinFree = int64(disk.Bavail)*disk.Bsize - 1<<30
	}, builder.ReasonDiskShort, nil},
	"fork": {func(_ *testing.T, r *rig, _ *schema.Job) { r.Limits.Processes = 64 }, "",
		func(t *testing.T, result schema.Result) {
			said := regexp.MustCompile("started ([0-9]+) processes").FindStringSubmatch(result.Log)
			if said == nil {
				t.Fatalf("it does not say how many it started:\n%s", result.Log)
			}
			if n, _ := strconv.Atoi(said[1]); n >= 20000 {
				t.Errorf("it started all of its %d processes", n)
			}
		}},
}

func TestHostileDockerfilesHurtNeitherTheBuilderNorItsNeighbours(t *testing.T) {
	t.Parallel()
	program := compile(t, hostileProgram)
	for step, c := range hostileSteps {
		t.Run(step, func(t *testing.T) {
			r := newRig(t, "one", registrytest.Start(t)).withEngine()
			n := newNeighbour(r)
			repo := testenv.Git(t)
			repo.Write("module.json", `{"name": "m", "artifacts": {"i": {"kind": "image", "dockerfile": "Dockerfile"}}}`)
			repo.Write("Dockerfile", fmt.Sprintf("FROM scratch\nCOPY hostile /hostile\nRUN [\"/hostile\", %q]\n", step))
			writeProgram(t, repo, "hostile", program)
			repo.Commit("hostile")
			job := schema.Job{Repository: repo.URL()}
			c.prepare(t, r, &job)
			result := r.build(job)
			switch {
			case c.reason == "" && result.Outcome != schema.OutcomeBuilt:
				t.Errorf("outcome %s: %+v\n%s", result.Outcome, result.Error, result.Log)
			case c.reason != "" && (result.Error == nil || result.Error.Reason != c.reason):
				t.Errorf("outcome %s: %+v, want %s", result.Outcome, result.Error, c.reason)
			}
			if c.check != nil {
				c.check(t, result)
			}
			r.MinFree, r.Limits = 0, engine.Limits{}
			n.unhurt(t)
		})
	}
}

// hostileScript is the build script of a package. It writes wherever it may, and says where.
const hostileScript = `const fs = require("fs"), path = require("path"), child = require("child_process");
for (const dir of ["/", "/cache", "/cache/npm", "/usr/bin", "/usr/local/bin", "/etc", "/root", "/mesh", "/mesh/home", "..", "../.."]) {
  try {
    fs.writeFileSync(path.join(dir, "npm"), "#!/bin/sh\necho poisoned\n", {mode: 0o755});
    console.log("wrote in", dir);
  } catch (e) {
    console.log("refused in", dir, e.code);
  }
}
child.spawn("sleep", ["3600"], {detached: true, stdio: "ignore"}).unref();
fs.mkdirSync("dist", {recursive: true});
fs.writeFileSync("dist/index.js", "console.log('built')");
`

func TestAHostilePackageScriptReachesNeitherCachesNorTheNextBuild(t *testing.T) {
	t.Parallel()
	s := samples(t)[toolchain.Node]
	r := newRig(t, "one", registrytest.Start(t)).withEngine()
	image := r.carry(s)
	r.Toolchains = r.containers(map[string]string{toolchain.Node: image})
	good := writeBundle(t, toolchain.Node, s, image)
	before := r.built(schema.Job{Repository: good.URL()})

	hostile := testenv.Git(t)
	for name, text := range s.files {
		hostile.Write("src/"+name, text)
	}
	hostile.Write("src/build.js", hostileScript)
	hostile.Write("module.json", fmt.Sprintf(`{"name": "h", "artifacts": {"base": {"kind": "upstream", "reference": %q}, "prog": {"kind": "bundle", "path": "src", "base": "base"}},
  "resources": [{"id": "prog", "type": "container", "artifact": "prog"}]}`, image))
	hostile.Commit("hostile")
	result := r.built(schema.Job{Repository: hostile.URL()})
	// Somewhere it could write, or the script did not run; but never where others read.
	if !strings.Contains(result.Log, "wrote in /mesh") || strings.Contains(result.Log, "wrote in /cache/npm") {
		t.Errorf("the script says:\n%s", result.Log)
	}
	if after := r.built(schema.Job{Repository: good.URL()}); after.Digest != before.Digest {
		t.Errorf("its neighbour was %s and is %s", before.Digest, after.Digest)
	}
	if left := inWork(t, r); len(left) > 0 {
		t.Errorf("left in the working directory: %q", left)
	}
	if left := inEngine(t, r.owner); len(left) > 0 {
		t.Errorf("left in the engine: %q", left)
	}
}
