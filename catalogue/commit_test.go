package catalogue_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/testenv"
)

// behind evaluates the pure function over the recorded source, as the controller does.
func (r *running) behind(module string, manifest *catalogue.ManifestFacts) []catalogue.Reason {
	r.t.Helper()
	s := r.source(module)
	return catalogue.Behind(catalogue.SourceFacts{State: s.State, Commit: s.Commit, Tree: s.Tree}, manifest, nil, "recipe")
}

// built is the manifest a build of the module's source would have recorded.
func (r *running) built(module string) *catalogue.ManifestFacts {
	r.t.Helper()
	s := r.source(module)
	return &catalogue.ManifestFacts{Digest: "sha256:x", Commit: s.Commit, Tree: s.Tree, Recipe: "recipe"}
}

func TestS1_006_RenamedFileIsNamedWithItsExpectedPlace(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	repo.Write("modules/db/module.json", module("db"))
	repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.inState(repo.URL(), "ok")
	repo.Run("mv", "modules/db/module.json", "modules/db/mesh.json")
	hash := repo.Commit("renamed")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if s := r.source("db"); s.State != "removed" || !strings.HasPrefix(s.Error, "modules/db/module.json: ") {
		t.Errorf("source is %+v", s)
	}
}

func TestS1_013_EveryFolderAndTheRootAreFound(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 67)
	repo.Write("module.json", module("root"))
	hash := repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	sources := r.sources()
	if len(sources) != 68 || r.source("root").Path != "" {
		t.Fatalf("%d sources", len(sources))
	}
	for _, s := range sources {
		if s.State != "ok" || !s.Document || len(r.behind(s.Module, nil)) != 1 {
			t.Errorf("%+v cannot be built", s)
		}
	}
}

func TestS1_020_CommitElsewhereDoesNotMakeAModuleBehind(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 2)
	repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.inState(repo.URL(), "ok")
	m0, m1 := r.built("m0"), r.built("m1")
	repo.Write("modules/m1/file", "two")
	repo.Write("README", "elsewhere")
	hash := repo.Commit("second")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if reasons := r.behind("m0", m0); len(reasons) > 0 {
		t.Errorf("m0 is behind: %v", reasons)
	}
	reasons := r.behind("m1", m1)
	if len(reasons) != 1 || reasons[0].Code != catalogue.SourceChanged {
		t.Fatalf("m1: %v", reasons)
	}
	if want := fmt.Sprintf("from commit %s to %s", m1.Commit[:12], hash[:12]); !strings.Contains(reasons[0].Message, want) {
		t.Errorf("%q does not say %q", reasons[0].Message, want)
	}
}

func TestS1_067_ModuleIsBehindAfterACommitAndNotBefore(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.inState(repo.URL(), "ok")
	built := r.built("m0")
	if reasons := r.behind("m0", built); len(reasons) > 0 {
		t.Fatalf("behind before the commit: %v", reasons)
	}
	repo.Write("modules/m0/file", "two")
	hash := repo.Commit("second")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if reasons := r.behind("m0", built); len(reasons) == 0 {
		t.Error("not behind after the commit")
	}
}

// The recorded ref stays what was asked for, and the commits after one are noticed too.
func TestS1_075_TrackedRefIsNeverTurnedIntoAPin(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "main")
	r.inState(repo.URL(), "ok")
	for i := range 3 {
		built := r.built("m0")
		repo.Write("modules/m0/file", fmt.Sprint("change ", i))
		hash := repo.Commit("next")
		r.refresh(repo.URL())
		r.at(repo.URL(), hash)
		if x := r.repository(repo.URL()); x.Ref != "main" || x.HeadRef != "refs/heads/main" {
			t.Errorf("the ref is %+v", x)
		}
		if len(r.behind("m0", built)) == 0 {
			t.Errorf("commit %d makes nothing behind", i)
		}
	}
}

func TestOneOf200ModulesCostsOneAskOneFetchOneParse(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 200)
	first := repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.at(repo.URL(), first)
	built := map[string]*catalogue.ManifestFacts{}
	for _, s := range r.sources() {
		built[s.Module] = r.built(s.Module)
	}
	asks, fetches, parses := r.counter("mesh_git_ls_remote_total"), r.counter("mesh_git_fetch_total"), r.counter("mesh_catalogue_parsed_total")
	if asks != 1 || fetches != 1 || parses != 200 {
		t.Errorf("the first read took %d asks, %d fetches, %d parses", asks, fetches, parses)
	}
	repo.Write("modules/m17/file", "two")
	hash := repo.Commit("second")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if a, f, p := r.counter("mesh_git_ls_remote_total")-asks, r.counter("mesh_git_fetch_total")-fetches, r.counter("mesh_catalogue_parsed_total")-parses; a != 1 || f != 1 || p != 1 {
		t.Errorf("the commit took %d asks, %d fetches, %d parses; want one of each", a, f, p)
	}
	var late []string
	for name, manifest := range built {
		if len(r.behind(name, manifest)) > 0 {
			late = append(late, name)
		}
	}
	if !slices.Equal(late, []string{"m17"}) {
		t.Errorf("behind: %v", late)
	}
	var changed []string
	data := r.lastChange("sources")
	if err := json.Unmarshal(data["changed"], &changed); err != nil || !slices.Equal(changed, []string{"m17"}) {
		t.Errorf("the wake-up tells %s", data["changed"])
	}
}

func (r *running) lastChange(kind string) map[string]json.RawMessage {
	r.t.Helper()
	var data map[string]json.RawMessage
	err := r.pool.QueryRow(r.t.Context(), `SELECT data FROM catalogue.changes WHERE kind = $1 ORDER BY id DESC LIMIT 1`, kind).Scan(&data)
	if err != nil {
		r.t.Fatal(err)
	}
	return data
}

// Whatever fails before the wake-up is written leaves commit and sources as they were, and
// the commit is read again.
func TestCommitMovesForwardWithItsWakeUpOrNotAtAll(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 3)
	first := repo.Commit("first")
	r := start(t, every(time.Second))
	r.add(repo.URL(), "")
	r.at(repo.URL(), first)
	r.exec(`CREATE SEQUENCE public.refused; CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM nextval('public.refused'); RAISE EXCEPTION 'no'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON catalogue.changes FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	before := r.sources()
	repo.Write("modules/m1/file", "two")
	second := repo.Commit("second")
	r.refresh(repo.URL())
	r.eventually("the refused recording", func() (bool, string) {
		var n int
		_ = r.pool.QueryRow(t.Context(), `SELECT last_value FROM public.refused WHERE is_called`).Scan(&n)
		return n > 0, fmt.Sprint(n)
	})
	if got := r.repository(repo.URL()); got.Commit != first || got.State != "ok" {
		t.Errorf("the repository moved to %+v", got)
	}
	if after := r.sources(); !slices.Equal(after, before) {
		t.Errorf("sources moved to %+v", after)
	}
	r.exec(`DROP TRIGGER refuse ON catalogue.changes`)
	r.at(repo.URL(), second)
	if s := r.source("m1"); s.Commit != second {
		t.Errorf("m1 is %+v", s)
	}
}

func TestIdleLooksWriteNothing(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 1)
	hash := repo.Commit("first")
	r := start(t, every(time.Second))
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	versions := func() (v string) {
		err := r.pool.QueryRow(t.Context(), `SELECT (SELECT xmin::text FROM catalogue.repositories) || ' ' ||
(SELECT xmin::text FROM catalogue.sources) || ' ' || (SELECT count(*) FROM catalogue.changes)`).Scan(&v)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before, asks := versions(), r.counter("mesh_git_ls_remote_total")
	r.eventually("three more looks", func() (bool, string) {
		n := r.counter("mesh_git_ls_remote_total") - asks
		return n >= 3, fmt.Sprint(n)
	})
	if after := versions(); before != after {
		t.Errorf("versions %s became %s", before, after)
	}
}

func TestForcePushIsANewHead(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 2)
	repo.Commit("first")
	repo.Write("modules/m0/file", "two")
	repo.Commit("second")
	r := start(t)
	r.add(repo.URL(), "main")
	r.inState(repo.URL(), "ok")
	repo.Run("checkout", "--quiet", "--orphan", "fresh")
	repo.Write("modules/m0/file", "rewritten")
	repo.Remove("modules/m1")
	rewritten := repo.Commit("another history")
	repo.Run("branch", "--force", "main", "fresh")
	r.refresh(repo.URL())
	r.at(repo.URL(), rewritten)
	if s := r.source("m0"); s.Commit != rewritten || s.State != "ok" {
		t.Errorf("m0 is %+v", s)
	}
	if s := r.source("m1"); s.State != "removed" {
		t.Errorf("m1 is %+v", s)
	}
}

func TestEmptyRepositoryIsReadOnItsFirstPush(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	r := start(t)
	for _, url := range []string{repo.URL(), "file://" + repo.Bare} {
		r.add(url, "")
		if x := r.inState(url, "EmptyRepository"); x.Modules != 0 || x.LastSuccess.Year() != 1970 {
			t.Errorf("%+v", x)
		}
	}
	many(repo, 1)
	hash := repo.Commit("first")
	for _, url := range []string{repo.URL(), "file://" + repo.Bare} {
		r.refresh(url)
		r.at(url, hash)
	}
}

func TestInvalidFilesAreTheirOwnAndAreTold(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 3)
	repo.Write("bad/unknown/module.json", "{\n  \"name\": \"unknown\",\n  \"features\": {}\n}\n")
	repo.Write("bad/nul/module.json", `{"name": "nul", "description": "a\u0000b"}`)
	repo.Write("bad/large/module.json", `{"name": "large", "description": "`+strings.Repeat("x", 300<<10)+`"}`)
	repo.Write("bad/link-target", module("link"))
	repo.Run("config", "core.symlinks", "true")
	repo.Write("bad/binary/module.json", "\xff\xfe\x00")
	repo.Run("update-index", "--add", "--cacheinfo", "120000,"+repo.Run("hash-object", "-w", "modules/m0/file")+",bad/link/module.json")
	tree := repo.Run("add", "--all", "modules", "bad/unknown", "bad/nul", "bad/large", "bad/binary") + repo.Run("write-tree")
	hash := repo.Run("commit-tree", "-m", "first", tree)
	repo.Run("update-ref", "refs/heads/main", hash)
	r := start(t)
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	invalid := map[string]string{}
	for _, s := range r.sources() {
		if s.State == "invalid" && !s.Holder && !s.Document {
			invalid[s.Path] = s.Error
		}
	}
	for path, want := range map[string]string{
		"bad/unknown": "bad/unknown/module.json:3:", "bad/nul": "", "bad/large": "larger than 256 KiB",
		"bad/link": "is a link", "bad/binary": "bad/binary/module.json:1:",
	} {
		if got, ok := invalid[path]; !ok || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if len(r.behind("m0", nil)) != 1 || len(invalid) != 5 {
		t.Errorf("invalid: %v", invalid)
	}

	// A module that was good keeps its name while its file is not, and comes back.
	repo.Run("read-tree", hash)
	repo.Write("modules/m0/module.json", "{")
	repo.Run("add", "modules/m0")
	second := repo.Run("commit-tree", "-p", hash, "-m", "second", repo.Run("write-tree"))
	repo.Run("update-ref", "refs/heads/main", second)
	r.refresh(repo.URL())
	r.at(repo.URL(), second)
	if s := r.source("m0"); s.State != "invalid" || !strings.Contains(s.Error, "modules/m0/module.json:1:") {
		t.Errorf("m0 is %+v", s)
	}
	if reasons := r.behind("m0", nil); len(reasons) > 0 {
		t.Errorf("an invalid source makes behind: %v", reasons)
	}
	repo.Run("update-ref", "refs/heads/main", hash)
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if s := r.source("m0"); s.State != "ok" || s.Error != "" {
		t.Errorf("m0 is %+v", s)
	}
}
