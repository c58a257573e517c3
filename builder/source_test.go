package builder_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/builder/toolchain"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// site is a module of one archive.
func site(name string) string {
	return fmt.Sprintf(`{"name": %q, "artifacts": {"site": {"kind": "archive", "path": "site"}},
  "resources": [{"id": "site", "type": "archive", "artifact": "site", "path": "/srv/%s"}]}`, name, name)
}

func writeSite(repo *testenv.Repo, dir, name string) {
	repo.Write(filepath.Join(dir, "module.json"), site(name))
	repo.Write(filepath.Join(dir, "site/index.html"), "<p>"+name+"</p>\n")
}

func digests(r schema.Result) map[string]string {
	all := map[string]string{}
	for name, built := range r.Manifest.Artifacts {
		all[name] = built.Digest
	}
	return all
}

func TestS1_010_PathAndRepositoryTogetherNameTheModule(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	writeSite(repo, "modules/b", "b")
	repo.Commit("two modules")
	result := r.built(schema.Job{Repository: repo.URL(), Path: "modules/b"})
	if result.Module != "b" || result.Manifest.Module != "b" || result.Manifest.Source.Path != "modules/b" {
		t.Errorf("built %+v", result.Manifest)
	}
	if _, err := r.client.Manifest(t.Context(), "a", result.Digest); err == nil {
		t.Error("module a was published too")
	}
}

func TestS1_011_EverythingComesFromBeneathThePath(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	repo.Write("outside/secret", "secret")
	for name, artifact := range map[string]string{
		"up":     `{"kind": "archive", "path": "../../outside"}`,
		"abs":    `{"kind": "archive", "path": "/outside"}`,
		"docker": `{"kind": "image", "dockerfile": "../../outside/Dockerfile"}`,
		"ctx":    `{"kind": "image", "dockerfile": "Dockerfile", "context": "../.."}`,
		"bundle": `{"kind": "bundle", "path": "a/../../../outside"}`,
	} {
		repo.Write("modules/"+name+"/module.json", fmt.Sprintf(`{"name": %q, "artifacts": {"x": %s}}`, name, artifact))
		repo.Write("modules/"+name+"/Dockerfile", "FROM scratch\n")
	}
	writeSite(repo, "modules/link", "link")
	if err := os.Symlink("../../../outside/secret", filepath.Join(repo.Dir, "modules/link/site/l")); err != nil {
		t.Fatal(err)
	}
	writeSite(repo, "modules/good", "good")
	repo.Commit("what leads out")
	url := repo.URL()
	for _, name := range []string{"up", "abs", "docker", "ctx", "bundle"} {
		result := r.build(schema.Job{Repository: url, Path: "modules/" + name})
		if result.Outcome != schema.OutcomeFailed || result.Error.Reason != builder.ReasonInvalidModule && result.Error.Reason != builder.ReasonPathOutside {
			t.Errorf("%s: %s %+v", name, result.Outcome, result.Error)
		}
	}
	r.failed(schema.Job{Repository: url, Path: "modules/link"}, schema.OutcomeFailed, builder.ReasonArchive)
	r.failed(schema.Job{Repository: url, Path: "../x"}, schema.OutcomeRefused, builder.ReasonPathOutside)

	before := r.built(schema.Job{Repository: url, Path: "modules/good"})
	repo.Write("outside/secret", "another secret")
	repo.Commit("outside of the path")
	after := r.built(schema.Job{Repository: url, Path: "modules/good"})
	if !maps.Equal(digests(before), digests(after)) || before.Tree != after.Tree {
		t.Error("a file outside the path changed a digest")
	}
}

func TestS1_012_ModuleAtTheRootIsNothingSpecial(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	root, folder := testenv.Git(t), testenv.Git(t)
	writeSite(root, ".", "x")
	writeSite(folder, "modules/x", "x")
	root.Commit("at the root")
	folder.Commit("in a folder")
	a := r.built(schema.Job{Repository: root.URL()})
	b := r.built(schema.Job{Repository: folder.URL(), Path: "modules/x"})
	if !maps.Equal(digests(a), digests(b)) || a.Tree != b.Tree {
		t.Errorf("at the root %v, in a folder %v", digests(a), digests(b))
	}
	if a.Manifest.Source.Path != "" {
		t.Errorf("path of the root is %q", a.Manifest.Source.Path)
	}
}

func TestS1_013_EveryModuleOfARepositoryOfManyBuilds(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	paths := map[string]string{"": "root"}
	writeSite(repo, ".", "root")
	for i := range 67 {
		name := fmt.Sprintf("m%02d", i)
		paths["modules/"+name] = name
		writeSite(repo, "modules/"+name, name)
	}
	repo.Commit("67 folders and the root")
	for path, name := range paths {
		if result := r.built(schema.Job{Repository: repo.URL(), Path: path}); result.Module != name {
			t.Errorf("path %q gave module %q", path, result.Module)
		}
	}
}

func TestS1_014_PathWithoutModuleSaysWhatWasLookedForAndWhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	repo.Commit("folders only")
	url := repo.URL()
	for _, path := range []string{"", "modules", "modules/none"} {
		result := r.failed(schema.Job{Repository: url, Path: path}, schema.OutcomeFailed, builder.ReasonNoModule)
		for _, part := range []string{"module.json", fmt.Sprintf("path %q", path), url} {
			if !strings.Contains(result.Error.Message, part) {
				t.Errorf("message %q does not name %q", result.Error.Message, part)
			}
		}
		if result.Repository != url || result.Path != path {
			t.Errorf("result keeps %q %q", result.Repository, result.Path)
		}
	}
	r.built(schema.Job{Repository: url, Path: "modules/a"})
}

func TestS1_017_ModuleFileCannotCarryWhatIsBuilt(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	digest := "sha256:" + strings.Repeat("0", 64)
	for field, value := range map[string]string{"digest": digest, "source": "https://registry.mesh/v2/modules/x/blobs/" + digest} {
		repo.Write(field+"/module.json", fmt.Sprintf(`{"name": "x", "resources": [{"id": "a", "type": "archive", "path": "/srv/a", %q: %q}]}`, field, value))
	}
	repo.Commit("too much said")
	for _, field := range []string{"digest", "source"} {
		result := r.failed(schema.Job{Repository: repo.URL(), Path: field}, schema.OutcomeFailed, builder.ReasonInvalidModule)
		if !strings.Contains(result.Error.Message, field) || !strings.Contains(result.Error.Message, field+"/module.json:1:") {
			t.Errorf("message %q does not point at the field", result.Error.Message)
		}
	}
}

func TestS1_018_BuildingWritesNothingBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	repo.Commit("a module")
	url := repo.URL()
	before := snapshot(t, repo.Bare)
	r.built(schema.Job{Repository: url, Path: "modules/a"})
	r.AllowLocal = true
	r.built(schema.Job{Repository: repo.Bare, Path: "modules/a"})
	if after := snapshot(t, repo.Bare); !maps.Equal(before, after) {
		t.Errorf("repository changed: %v", after)
	}
}

// snapshot gives every file of a directory with its content.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		files[p] = string(data)
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	return files
}

func TestS1_019_ManifestRecordsTheCommitItCameFrom(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	first := repo.Commit("first")
	repo.Run("tag", "--annotate", "--message", "a tag", "v1")
	repo.Run("branch", "side")
	repo.Write("modules/a/site/more", "more")
	second := repo.Commit("second")
	url := repo.URL()
	for ref, want := range map[string][2]string{
		"":                {"refs/heads/main", second},
		"main":            {"refs/heads/main", second},
		"refs/heads/side": {"refs/heads/side", first},
		"v1":              {"refs/tags/v1", first},
		second:            {"refs/heads/main", second},
	} {
		result := r.built(schema.Job{Repository: url, Path: "modules/a", Ref: ref})
		source := result.Manifest.Source
		if source.Ref != want[0] || source.Commit != want[1] || result.Commit != want[1] {
			t.Errorf("ref %q gave %+v, want %v", ref, source, want)
		}
		if tree := repo.Run("rev-parse", want[1]+":modules/a"); source.Tree != tree {
			t.Errorf("ref %q: tree %s, want %s", ref, source.Tree, tree)
		}
		if source.Repository != url {
			t.Errorf("repository %q", source.Repository)
		}
	}
}

func TestRefsThatAreNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo, empty := testenv.Git(t), testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	old := repo.Commit("first")
	repo.Write("x", "x")
	repo.Commit("second")
	url := repo.URL()
	r.failed(schema.Job{Repository: url, Ref: "none"}, schema.OutcomeFailed, clone.ReasonRef)
	r.failed(schema.Job{Repository: url, Ref: strings.Repeat("1", 40)}, schema.OutcomeFailed, clone.ReasonRef)
	r.failed(schema.Job{Repository: empty.URL()}, schema.OutcomeFailed, clone.ReasonEmpty)
	r.failed(schema.Job{Repository: "http://127.0.0.1:1/x.git"}, schema.OutcomeFailed, clone.ReasonUnreachable)
	r.failed(schema.Job{Repository: "ext::sh -c id"}, schema.OutcomeRefused, clone.ReasonAddress)
	r.failed(schema.Job{Repository: "ftp://example.org/x"}, schema.OutcomeRefused, clone.ReasonAddress)
	if result := r.built(schema.Job{Repository: url, Path: "modules/a", Ref: old}); result.Commit != old {
		t.Errorf("a commit that is no tip gave %s", result.Commit)
	}
}

func TestS1_065_LocalPathIsRefusedWithItsReasonAndAURLBuilds(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	repo.Commit("a module")
	for _, local := range []string{repo.Dir, repo.Bare, "file://" + repo.Bare, "./repo", "../repo"} {
		result := r.failed(schema.Job{Repository: local, Path: "modules/a"}, schema.OutcomeRefused, clone.ReasonLocal)
		if !strings.Contains(result.Error.Message, "does not see its node's files") || !strings.Contains(result.Error.Remedy, "by hand") {
			t.Errorf("%s: %+v", local, result.Error)
		}
	}
	r.built(schema.Job{Repository: repo.URL(), Path: "modules/a"})
}

func TestClonedFromElsewhereRecordsTheWatchedURL(t *testing.T) {
	t.Parallel()
	reg := registrytest.Start(t)
	r := newRig(t, "init", reg)
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	repo.Commit("a module")
	url := repo.URL()
	r.AllowLocal, r.CloneFrom = true, map[string]string{url: repo.Bare}
	local := r.built(schema.Job{Repository: url, Path: "modules/a"})
	remote := newRig(t, "ordinary", reg).built(schema.Job{Repository: url, Path: "modules/a"})
	if local.Digest != remote.Digest {
		t.Errorf("init builder %s, ordinary %s", local.Digest, remote.Digest)
	}
}

func TestS1_086_EveryBuildClonesAfreshAndLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	repo.Commit("a module")
	var during []string
	r.OnPhase = func(p schema.Phase) {
		if p == schema.PhaseVerify {
			during = append(during, inWork(t, r)...)
		}
	}
	for range 2 {
		result := r.built(schema.Job{Repository: repo.URL(), Path: "modules/a"})
		if n := strings.Count(result.Log, "cloned "); n != 1 {
			t.Errorf("log tells of %d clones:\n%s", n, result.Log)
		}
		if last := during[len(during)-1]; !strings.Contains(result.Log, "into "+last) {
			t.Errorf("log does not name directory %s:\n%s", last, result.Log)
		}
	}
	if len(during) != 2 || during[0] == during[1] {
		t.Errorf("directories %q, want two", during)
	}
	r.failed(schema.Job{Repository: repo.URL(), Path: "none"}, schema.OutcomeFailed, builder.ReasonNoModule)
	if left := inWork(t, r); len(left) > 0 {
		t.Errorf("directories left: %q", left)
	}
}

func inWork(t *testing.T, r *rig) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.Work, "builds"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestS1_087_NothingAnEarlierBuildLeftHelps(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t)).withEngine()
	repo := testenv.Git(t)
	// The first build would leave "made" behind for the second, if anything were left.
	repo.Write("module.json", `{"name": "x", "artifacts": {"prog": {"kind": "bundle", "path": "."}, "image": {"kind": "image", "dockerfile": "Dockerfile"}}}`)
	repo.Write("go.mod", "module example.org/x\n\ngo 1.24\n")
	repo.Write("main.go", "package main\n\nimport _ \"embed\"\n\n//go:embed x\nvar made []byte\n\nfunc main() { _ = made }\n")
	repo.Write("Dockerfile", "FROM scratch\n")
	repo.Commit("needs a file that only a build makes")
	for range 2 {
		r.failed(schema.Job{Repository: repo.URL()}, schema.OutcomeFailed, builder.ReasonCompile)
	}
	repo.Write("main.go", "package main\n\nfunc main() {}\n")
	repo.Write("Dockerfile", "FROM scratch\nCOPY x /x\n")
	repo.Commit("the program is there now, for an image that copies it")
	for range 2 {
		r.failed(schema.Job{Repository: repo.URL()}, schema.OutcomeFailed, builder.ReasonImage)
	}
}

func TestLFSPointersAndSubmodulesFail(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	writeSite(repo, "lfs", "lfs")
	repo.Write("lfs/site/big", "version https://git-lfs.github.com/spec/v1\noid sha256:"+strings.Repeat("0", 64)+"\nsize 1\n")
	writeSite(repo, "sub", "sub")
	head := repo.Commit("a pointer")
	repo.Run("update-index", "--add", "--cacheinfo", "160000,"+head+",sub/site/module")
	repo.Run("commit", "--quiet", "--message", "a submodule")
	r.failed(schema.Job{Repository: repo.URL(), Path: "lfs"}, schema.OutcomeFailed, clone.ReasonLFS)
	r.failed(schema.Job{Repository: repo.URL(), Path: "sub"}, schema.OutcomeFailed, clone.ReasonSubmodule)
}

func TestLanguageIsImpliedByOneFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, "one", registrytest.Start(t))
	delete(r.Toolchains, toolchain.Node)
	repo := testenv.Git(t)
	for name, files := range map[string][]string{"none": {"x"}, "two": {"go.mod", "package.json"}, "node": {"package.json"}} {
		repo.Write(name+"/module.json", fmt.Sprintf(`{"name": %q, "artifacts": {"p": {"kind": "bundle", "path": "."}}}`, name))
		for _, file := range files {
			repo.Write(name+"/"+file, "")
		}
	}
	repo.Commit("languages")
	want := map[string]builder.Reason{"none": builder.ReasonLanguage, "two": builder.ReasonLanguage, "node": builder.ReasonNoToolchain}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		r.failed(schema.Job{Repository: repo.URL(), Path: name}, schema.OutcomeFailed, want[name])
	}
}
