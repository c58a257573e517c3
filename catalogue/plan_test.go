package catalogue

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"pgregory.net/rapid"
)

// mirror is the table, as plan's outcomes make it.
type mirror struct {
	rows []*row
	next int64
}

func (m *mirror) apply(c commit, readings []reading) {
	var given []*row
	for _, r := range m.rows {
		own := *r
		given = append(given, &own)
	}
	decided := plan(c, given, readings)
	drop := map[int64]bool{}
	for _, id := range decided.Delete {
		drop[id] = true
	}
	for _, r := range decided.Write {
		drop[r.ID] = r.ID != 0
	}
	m.rows = slices.DeleteFunc(m.rows, func(r *row) bool { return drop[r.ID] })
	for _, r := range decided.Write {
		if r.ID == 0 {
			m.next++
			r.ID = m.next
		}
		m.rows = append(m.rows, r)
	}
	slices.SortFunc(m.rows, func(a, b *row) int { return cmp.Compare(a.ID, b.ID) })
}

func (m *mirror) copy() *mirror {
	c := &mirror{next: m.next}
	for _, r := range m.rows {
		own := *r
		c.rows = append(c.rows, &own)
	}
	return c
}

func drawReadings(t *rapid.T) []reading {
	var readings []reading
	for _, place := range []string{"", "a", "b", "c"} {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
		case 1:
			readings = append(readings, reading{Path: place, Tree: "t", Blob: "b", Error: "bad"})
		default:
			name := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")
			readings = append(readings, reading{Path: place, Tree: "t", Blob: "b", Module: name, Document: json.RawMessage(`{}`)})
		}
	}
	return readings
}

// Whatever is committed in whatever order to two repositories: a name has at most one holder,
// a place at most one source, every valid file's name is held, a holder that is still there
// stands, and reading the same commit again changes nothing.
func TestNamesAreHeldOnceWhateverIsCommitted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := &mirror{}
		for i := range rapid.IntRange(1, 8).Draw(t, "commits") {
			id := rapid.Int64Range(1, 2).Draw(t, "repository")
			c := commit{Repository: id, URL: fmt.Sprintf("r%d", id), Hash: fmt.Sprint(i)}
			readings := drawReadings(t)
			before := table.copy()
			table.apply(c, readings)
			checkTable(t, before, table, c, readings)
			again := table.copy()
			again.apply(c, readings)
			if !reflect.DeepEqual(again.rows, table.rows) {
				t.Fatalf("read again, %s became %s", show(table.rows), show(again.rows))
			}
		}
	})
}

func checkTable(t *rapid.T, before, after *mirror, c commit, readings []reading) {
	holders, places := map[string]*row{}, map[string]bool{}
	for _, r := range after.rows {
		if r.Holder {
			if holders[r.Module] != nil {
				t.Fatalf("%q is held twice in %s", r.Module, show(after.rows))
			}
			holders[r.Module] = r
		}
		place := fmt.Sprint(r.Repository, "/", r.Path)
		if r.State != StateRemoved && places[place] {
			t.Fatalf("%s has two sources in %s", place, show(after.rows))
		}
		places[place] = places[place] || r.State != StateRemoved
	}
	valid := map[string]string{}
	for _, reading := range readings {
		if !places[fmt.Sprint(c.Repository, "/", reading.Path)] {
			t.Fatalf("%q was read and has no source in %s", reading.Path, show(after.rows))
		}
		if reading.Document != nil {
			valid[reading.Path] = reading.Module
			if h := holders[reading.Module]; h == nil || h.State == StateRemoved {
				t.Fatalf("nobody holds %q in %s", reading.Module, show(after.rows))
			}
		}
	}
	for _, r := range before.rows {
		stays := r.Repository != c.Repository || valid[r.Path] == r.Module
		if r.Holder && r.State == StateOK && stays && holders[r.Module].ID != r.ID {
			t.Fatalf("the incumbent %s lost its name in %s", show([]*row{r}), show(after.rows))
		}
	}
}

func show(rows []*row) string {
	text := ""
	for _, r := range rows {
		text += fmt.Sprintf("[%d %s %s/%q %s holder=%t]", r.ID, r.Module, r.URL, r.Path, r.State, r.Holder)
	}
	return text
}

func TestKnownDirectoryKeepsWhatLiesBeneath(t *testing.T) {
	table := &mirror{}
	c := commit{Repository: 1, URL: "r", Hash: "1"}
	doc := json.RawMessage(`{}`)
	table.apply(c, []reading{
		{Path: "", Module: "root", Document: doc}, {Path: "a", Module: "a", Document: doc},
		{Path: "a/b", Module: "b", Document: doc}, {Path: "ab", Module: "ab", Document: doc},
	})
	table.apply(c, []reading{{Path: "", Module: "root", Document: doc}, {Path: "a", Known: true}})
	states := map[string]string{}
	for _, r := range table.rows {
		states[r.Module] = r.State
	}
	if want := map[string]string{"root": "ok", "a": "ok", "b": "ok", "ab": "removed"}; !reflect.DeepEqual(states, want) {
		t.Errorf("states %v", states)
	}
}

func TestBehindHasItsReasons(t *testing.T) {
	source := SourceFacts{State: StateOK, Commit: "c2", Tree: "t2"}
	current := &ManifestFacts{Commit: "c1", Tree: "t2", Recipe: "r"}
	old := &ManifestFacts{Commit: "c1", Tree: "t1", Recipe: "r"}
	borrows := &ManifestFacts{Commit: "c1", Tree: "t2", Recipe: "r", Moved: []Moved{{"docker.io/library/a:1", "sha256:1", "sha256:2"}}}
	failed := &BuildFacts{ID: "7", Failed: true, Tree: "t2", Recipe: "r", Message: "no compiler"}
	for name, c := range map[string]struct {
		source   SourceFacts
		manifest *ManifestFacts
		build    *BuildFacts
		recipe   string
		codes    []string
		state    string
		build0   bool // taken by build --behind
		retry    bool // and with --retry
	}{
		"current":                          {source, current, nil, "r", nil, StateOK, false, false},
		"current though a build failed":    {source, current, failed, "r", nil, StateOK, false, false},
		"never built":                      {source, nil, nil, "r", []string{NeverBuilt}, StateBehind, true, true},
		"source changed":                   {source, old, nil, "r", []string{SourceChanged}, StateBehind, true, true},
		"recipe changed":                   {source, current, nil, "r2", []string{RecipeChanged}, StateBehind, true, true},
		"both changed":                     {source, old, nil, "r2", []string{SourceChanged, RecipeChanged}, StateBehind, true, true},
		"an upstream tag moved":            {source, borrows, nil, "r", []string{UpstreamMoved}, StateBehind, true, true},
		"failed on this input":             {source, old, failed, "r", []string{SourceChanged, LastBuildFailed}, StateFailed, false, true},
		"failed, never built":              {source, nil, failed, "r", []string{NeverBuilt, LastBuildFailed}, StateFailed, false, true},
		"failed on another tree":           {source, old, &BuildFacts{Failed: true, Tree: "t1", Recipe: "r"}, "r", []string{SourceChanged}, StateBehind, true, true},
		"failed with another recipe":       {source, old, failed, "r2", []string{SourceChanged, RecipeChanged}, StateBehind, true, true},
		"failed before its tree was known": {source, old, &BuildFacts{Failed: true, Commit: "c2", Recipe: "r"}, "r", []string{SourceChanged, LastBuildFailed}, StateFailed, false, true},
		"failed before anything was known": {source, old, &BuildFacts{Failed: true, Recipe: "r"}, "r", []string{SourceChanged}, StateBehind, true, true},
		"removed":                          {SourceFacts{State: StateRemoved}, old, nil, "r", nil, StateRemoved, false, false},
		"invalid":                          {SourceFacts{State: StateInvalid}, nil, nil, "r", nil, StateInvalid, false, false},
		"conflict":                         {SourceFacts{State: StateConflict}, nil, nil, "r", nil, StateConflict, false, false},
	} {
		reasons := Behind(c.source, c.manifest, c.build, c.recipe)
		var codes []string
		for _, r := range reasons {
			codes = append(codes, r.Code)
			if r.Message == "" {
				t.Errorf("%s: %s says nothing", name, r.Code)
			}
		}
		if !slices.Equal(codes, c.codes) || State(c.source, reasons) != c.state {
			t.Errorf("%s: %v, %s", name, codes, State(c.source, reasons))
		}
		if Buildable(reasons, false) != c.build0 || Buildable(reasons, true) != c.retry {
			t.Errorf("%s: buildable %t, with retry %t", name, Buildable(reasons, false), Buildable(reasons, true))
		}
	}
}

// After an overflow of events every repository may have moved, and watches may be stale.
func TestOverflowLooksAtEverythingAgain(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"one/objects", "one/refs/heads", "two/objects", "two/refs"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(root, name, "HEAD"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	woke := make(chan int64, 8)
	w := newWatcher(slog.New(slog.DiscardHandler), func(id int64) { woke <- id })
	if w.events == nil {
		t.Fatal("this machine has no watches")
	}
	w.set(1, filepath.Join(root, "one"))
	w.set(2, filepath.Join(root, "two"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	w.events.Errors <- fsnotify.ErrEventOverflow
	got := map[int64]bool{}
	for len(got) < 2 {
		select {
		case id := <-woke:
			got[id] = true
		case <-time.After(10 * time.Second):
			t.Fatalf("only %v were woken", got)
		}
	}
}
