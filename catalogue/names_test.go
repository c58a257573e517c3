package catalogue_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/testenv"
)

// claims are the rows of a name that do not hold it.
func (r *running) claims(module string) []sourceRow {
	var list []sourceRow
	for _, s := range r.sources() {
		if s.Module == module && !s.Holder {
			list = append(list, s)
		}
	}
	return list
}

func TestConflictNamesBothPlacesAndTheIncumbentStands(t *testing.T) {
	t.Parallel()
	one, two := testenv.Git(t), testenv.Git(t)
	one.Write("modules/db/module.json", module("db"))
	first := one.Commit("first")
	two.Write("other/module.json", module("db"))
	two.Write("fine/module.json", module("fine"))
	second := two.Commit("first")
	r := start(t)
	r.add(one.URL(), "")
	r.at(one.URL(), first)
	incumbent := r.source("db")
	r.add(two.URL(), "")
	r.at(two.URL(), second)
	if s := r.source("db"); s != incumbent {
		t.Errorf("the incumbent became %+v", s)
	}
	claims := r.claims("db")
	if len(claims) != 1 || claims[0].State != "conflict" {
		t.Fatalf("claims: %+v", claims)
	}
	for _, part := range []string{"modules/db/module.json in " + one.URL(), "other/module.json in " + two.URL(), "stands"} {
		if !strings.Contains(claims[0].Error, part) {
			t.Errorf("%q does not say %q", claims[0].Error, part)
		}
	}
	if s := r.source("fine"); s.State != "ok" {
		t.Errorf("the conflict's neighbour is %+v", s)
	}

	// The incumbent keeps moving; the conflict does not hold it.
	one.Write("modules/db/file", "x")
	third := one.Commit("second")
	r.refresh(one.URL())
	r.at(one.URL(), third)
	if s := r.source("db"); s.Commit != third || s.URL != one.URL() {
		t.Errorf("the incumbent is %+v", s)
	}

	// When it goes, the claimant takes the name.
	one.Run("rm", "-r", "--quiet", "modules/db")
	fourth := one.Commit("third")
	r.refresh(one.URL())
	r.at(one.URL(), fourth)
	if s := r.source("db"); s.State != "ok" || s.URL != two.URL() || s.Path != "other" || s.Error != "" {
		t.Errorf("the heir is %+v", s)
	}
	if len(r.claims("db")) != 0 {
		t.Errorf("claims: %+v", r.claims("db"))
	}
}

func TestMovedModuleIsTheSameModule(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 2)
	repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.inState(repo.URL(), "ok")
	tree := r.source("m0").Tree
	repo.Run("mv", "modules/m0", "moved")
	hash := repo.Commit("moved")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if s := r.source("m0"); s.Path != "moved" || s.State != "ok" || s.Tree != tree {
		t.Errorf("m0 is %+v", s)
	}
	if len(r.sources()) != 2 {
		t.Errorf("sources: %+v", r.sources())
	}
	var moved []string
	if _ = json.Unmarshal(r.lastChange("sources")["moved"], &moved); !slices.Equal(moved, []string{"m0"}) {
		t.Errorf("told as moved: %v", moved)
	}

	// Two modules that trade places, and one that is renamed where it stands.
	repo.Write("moved/module.json", module("m1"))
	repo.Write("modules/m1/module.json", module("m0"))
	hash = repo.Commit("swapped")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if a, b := r.source("m0"), r.source("m1"); a.Path != "modules/m1" || b.Path != "moved" || a.State != "ok" || b.State != "ok" {
		t.Errorf("swapped: %+v, %+v", a, b)
	}
	repo.Write("moved/module.json", module("renamed"))
	hash = repo.Commit("renamed")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if s := r.source("renamed"); s.State != "ok" || s.Path != "moved" {
		t.Errorf("renamed is %+v", s)
	}
	if s := r.source("m1"); s.State != "removed" || !strings.Contains(s.Error, `"renamed"`) {
		t.Errorf("m1 is %+v", s)
	}
}

func TestRemovalIsReportedAndNothingElseHappens(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 3)
	repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "main")
	r.inState(repo.URL(), "ok")
	before := []sourceRow{r.source("m1"), r.source("m2")}
	repo.Remove("modules/m0")
	hash := repo.Commit("second")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if s := r.source("m0"); s.State != "removed" || !strings.Contains(s.Error, hash[:12]) {
		t.Errorf("m0 is %+v", s)
	}
	if after := []sourceRow{r.source("m1"), r.source("m2")}; !slices.Equal(before, after) {
		t.Errorf("the others became %+v", after)
	}
	if reasons := r.behind("m0", nil); len(reasons) > 0 {
		t.Errorf("a removed module is behind: %v", reasons)
	}
	var removed []string
	if _ = json.Unmarshal(r.lastChange("sources")["removed"], &removed); !slices.Equal(removed, []string{"m0"}) {
		t.Errorf("told as removed: %v", removed)
	}

	// A branch that is gone is a state of the repository; it removes nothing.
	sources := r.sources()
	repo.Run("branch", "other")
	repo.Run("symbolic-ref", "HEAD", "refs/heads/other")
	repo.Run("branch", "--delete", "--force", "main")
	r.refresh(repo.URL())
	r.inState(repo.URL(), "RefNotFound")
	if after := r.sources(); !slices.Equal(sources, after) {
		t.Errorf("sources became %+v", after)
	}

	// The module comes back under its name.
	repo.Run("branch", "main")
	repo.Run("symbolic-ref", "HEAD", "refs/heads/main")
	repo.Write("modules/m0/module.json", module("m0"))
	hash = repo.Commit("third")
	r.refresh(repo.URL())
	r.at(repo.URL(), hash)
	if s := r.source("m0"); s.State != "ok" || len(r.sources()) != 3 {
		t.Errorf("m0 is %+v among %+v", s, r.sources())
	}
}

func TestUnwatchedRepositoryLeavesItsModulesRemoved(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	many(repo, 2)
	hash := repo.Commit("first")
	r := start(t)
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	r.exec(`SELECT catalogue.request_remove_repository($1)`, repo.URL())
	r.eventually("m1", func() (bool, string) {
		s := r.source("m1")
		return s.State == "removed", s.State + ": " + s.Error
	})
	if s := r.source("m0"); s.State != "removed" || !strings.Contains(s.Error, "no longer watched") {
		t.Errorf("m0 is %+v", s)
	}
	r.add(repo.URL(), "")
	r.at(repo.URL(), hash)
	if s := r.source("m0"); s.State != "ok" || len(r.sources()) != 2 {
		t.Errorf("m0 is %+v among %+v", s, r.sources())
	}
}
