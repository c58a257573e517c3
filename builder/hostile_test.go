package builder_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// neighbour is an ordinary module that a builder makes before and after a hostile one.
type neighbour struct {
	*rig
	repo   *testenv.Repo
	before schema.Result
}

func newNeighbour(r *rig) *neighbour {
	n := &neighbour{rig: r, repo: testenv.Git(r.t)}
	writeSite(n.repo, ".", "neighbour")
	n.repo.Commit("a neighbour")
	n.before = n.built(schema.Job{Repository: n.repo.URL()})
	return n
}

// unhurt builds the neighbour again, and looks for what the hostile build left.
func (n *neighbour) unhurt(t *testing.T) {
	t.Helper()
	if left := inWork(t, n.rig); len(left) > 0 {
		t.Errorf("left in the working directory: %q", left)
	}
	if after := n.built(schema.Job{Repository: n.repo.URL()}); after.Digest != n.before.Digest {
		t.Errorf("its neighbour was %s and is %s", n.before.Digest, after.Digest)
	}
	if n.Engine == nil {
		return
	}
	if left := inEngine(t, n.owner); len(left) > 0 {
		t.Errorf("left in the engine: %q", left)
	}
}

// multiply commits a module with a directory bomb, of ten times ten times ten … of one thing.
func multiply(t *testing.T, repo *testenv.Repo, entry string) {
	t.Helper()
	for range 9 {
		var level strings.Builder
		for i := range 10 {
			fmt.Fprintf(&level, "%s\t%d\n", entry, i)
		}
		entry = "040000 tree " + objects(t, repo, level.String(), "mktree")
	}
	file := objects(t, repo, `{"name": "m", "artifacts": {"a": {"kind": "archive", "path": "bomb"}}}`, "hash-object", "-w", "--stdin")
	root := objects(t, repo, "100644 blob "+file+"\tmodule.json\n"+entry+"\tbomb\n", "mktree")
	objects(t, repo, "", "update-ref", "refs/heads/main", objects(t, repo, "a bomb", "commit-tree", root))
}

const archiveOfAll = `{"name": "m", "artifacts": {"a": {"kind": "archive", "path": "a"}}}`

// hostileContents are modules that are more, or are called something else, than a builder may
// have expected. Those without a reason are built.
var hostileContents = map[string]struct {
	write  func(*testing.T, *testenv.Repo)
	reason builder.Reason
}{
	"a file of zeros that is larger than an artifact may be": {func(t *testing.T, repo *testenv.Repo) {
		repo.Write("module.json", archiveOfAll)
		repo.Write("a/zeros", strings.Repeat("\x00", 64<<20))
		repo.Commit("a bomb")
	}, builder.ReasonTooLarge},
	"files that are one file a billion times": {func(t *testing.T, repo *testenv.Repo) {
		multiply(t, repo, "100644 blob "+objects(t, repo, "x", "hash-object", "-w", "--stdin"))
	}, clone.ReasonTooLarge},
	"empty directories, a billion of them": {func(t *testing.T, repo *testenv.Repo) {
		multiply(t, repo, "040000 tree "+objects(t, repo, "", "mktree"))
	}, clone.ReasonTooLarge},
	"directories deeper than a path is long": {func(t *testing.T, repo *testenv.Repo) {
		commitFiles(t, repo, archiveOfAll, func(yield func(name, text string) bool) {
			yield(strings.Repeat("x/", 2100)+"x", "down here")
		})
	}, clone.ReasonTooLarge},
	"a hundred thousand files": {func(t *testing.T, repo *testenv.Repo) {
		commitFiles(t, repo, archiveOfAll, func(yield func(name, text string) bool) {
			for i := range 100_000 {
				yield(fmt.Sprintf("%d/%d", i%300, i), fmt.Sprint(i))
			}
		})
	}, ""},
	"names that look like options": {func(t *testing.T, repo *testenv.Repo) {
		repo.Write("module.json", `{"name": "m", "artifacts": {
  "a": {"kind": "archive", "path": "--help"}, "b": {"kind": "bundle", "path": "-o"}}}`)
		for _, name := range []string{"-rf", "--", "--output=x", "@file", "$(touch x)", "`touch x`", ";touch x", "|touch x", "*", "~", "a\nb", "%2e%2e", `a\b`} {
			repo.Write("--help/"+name, name)
		}
		repo.Write("-o/go.mod", "module example.org/x\n\ngo 1.24\n")
		repo.Write("-o/main.go", "package main\n\nfunc main() {}\n")
		repo.Write("-o/data/-toolexec=touch", "package main\n")
		repo.Commit("options")
	}, ""},
	"a package that looks like an option": {func(t *testing.T, repo *testenv.Repo) {
		repo.Write("module.json", `{"name": "m", "artifacts": {"b": {"kind": "bundle", "path": "b", "package": "-toolexec=touch"}}}`)
		repo.Write("b/go.mod", "module example.org/x\n\ngo 1.24\n")
		repo.Write("b/main.go", "package main\n\nfunc main() {}\n") // which would be built if it were one
		repo.Commit("an option")
	}, builder.ReasonCompile},
}

func TestHostileContentsHurtNeitherTheBuilderNorItsNeighbours(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	r.MaxArtifact = 128 << 20
	n := newNeighbour(r)
	for name, c := range hostileContents {
		t.Run(name, func(t *testing.T) {
			repo := testenv.Git(t)
			c.write(t, repo)
			if r.MaxArtifact = 128 << 20; c.reason == builder.ReasonTooLarge {
				r.MaxArtifact = 1 << 20
			}
			result := r.build(schema.Job{Repository: repo.URL()})
			switch {
			case c.reason == "" && result.Outcome != schema.OutcomeBuilt:
				t.Errorf("outcome %s: %+v\n%s", result.Outcome, result.Error, result.Log)
			case c.reason != "" && (result.Error == nil || result.Error.Reason != c.reason):
				t.Errorf("outcome %s: %+v, want %s", result.Outcome, result.Error, c.reason)
			}
			n.unhurt(t)
		})
	}
}
