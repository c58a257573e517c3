package catalogue

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/mesh-control/mesh/catalogue/source"
)

// row is one of catalogue.sources, in memory. ID 0 is not yet stored.
type row struct {
	ID          int64
	Module      string
	Holder      bool
	Repository  int64
	URL         string
	Path        string
	Commit      string
	Tree        string
	Blob        string
	Document    json.RawMessage
	Error       string
	State       string
	CommittedAt time.Time
	SeenAt      time.Time
}

// reading is what was found at one path of a commit. Document is nil when the file is not
// valid; Module is then its name as far as it could be read.
type reading struct {
	Path     string
	Tree     string
	Blob     string
	Known    bool // as recorded, and so is everything beneath
	Module   string
	Document json.RawMessage
	Error    string
}

// commit is what the readings are of.
type commit struct {
	Repository  int64
	URL         string
	Hash        string
	CommittedAt time.Time
	Now         time.Time
	// Unwatched: there is no commit; the repository is no longer watched.
	Unwatched bool
}

// outcome is what [plan] decided: rows to write (new, or again under their id), ids to
// delete, and what to tell.
type outcome struct {
	Write  []*row
	Delete []int64
	Report report
}

// report goes into catalogue.changes: names of modules, sorted.
type report struct {
	Changed   []string `json:"changed,omitempty"`
	Removed   []string `json:"removed,omitempty"`
	Moved     []string `json:"moved,omitempty"`
	Conflicts []string `json:"conflicts,omitempty"`
	Invalid   []string `json:"invalid,omitempty"` // paths
}

// planner is the state of one [plan].
type planner struct {
	commit commit
	rows   map[*row]bool // all there are; true when it must be written
	gone   []int64
	names  map[string]bool // whose holder must be decided anew
	report report
}

// plan decides what the readings of a commit make of the sources. readings are all of the
// commit's, known ones too. rows are the repository's at every path where something differs,
// and all, of any repository, whose name one of those or of the readings bears. It is pure;
// rows are its own to change.
func plan(c commit, rows []*row, readings []reading) outcome {
	p := &planner{commit: c, rows: map[*row]bool{}, names: map[string]bool{}}
	at := map[string]*row{}
	for _, r := range rows {
		p.rows[r] = false
		if r.Repository == c.Repository && r.State != StateRemoved {
			at[r.Path] = r
		}
	}
	for _, reading := range readings {
		if !reading.Known {
			p.read(at[reading.Path], reading)
		}
	}
	for _, place := range lost(sortedKeys(at), readings) {
		p.lose(at[place])
	}
	byName := map[string][]*row{}
	for r := range p.rows {
		if p.names[r.Module] {
			byName[r.Module] = append(byName[r.Module], r)
		}
	}
	for _, name := range sortedKeys(p.names) {
		p.settle(name, byName[name])
	}
	return p.outcome()
}

// lost are those of the recorded places at which the readings have found no file: it is there
// neither by itself nor beneath a directory that is as it was.
func lost(places []string, readings []reading) []string {
	found, unchanged := map[string]bool{}, map[string]bool{}
	for _, r := range readings {
		found[r.Path] = true
		if r.Known {
			unchanged[r.Path] = true
		}
	}
	return slices.DeleteFunc(places, func(place string) bool { return found[place] || beneath(place, unchanged) })
}

// beneath says whether place lies in one of the directories.
func beneath(place string, directories map[string]bool) bool {
	for place != "" {
		place = path.Dir(place)
		if place == "." {
			place = ""
		}
		if directories[place] {
			return true
		}
	}
	return false
}

func (p *planner) read(r *row, found reading) {
	if r != nil && r.Holder && found.Document != nil && r.Module != found.Module {
		p.bury(r, fmt.Sprintf("%s: the module there is now called %q", p.file(r.Path), found.Module))
		r = nil
	}
	if r == nil {
		r = &row{Repository: p.commit.Repository, URL: p.commit.URL, Path: found.Path}
	}
	if r.Module != "" {
		p.names[r.Module] = true
	}
	r.Commit, r.CommittedAt, r.SeenAt = p.commit.Hash, p.commit.CommittedAt, p.commit.Now
	r.Tree, r.Blob, r.Document, r.Error = found.Tree, found.Blob, found.Document, found.Error
	switch {
	case found.Document == nil:
		r.State = StateInvalid
		if !r.Holder {
			r.Module = found.Module
		}
		p.report.Invalid = append(p.report.Invalid, r.Path)
	case r.Holder:
		r.State = StateOK
		p.report.Changed = append(p.report.Changed, r.Module)
	default: // a claim, until the name is settled
		r.State = StateConflict
		r.Module = found.Module
	}
	if r.Module != "" {
		p.names[r.Module] = true
	}
	p.rows[r] = true
}

func (p *planner) file(at string) string { return path.Join(at, source.FileName) }

// lose takes note that the file of r is no longer there.
func (p *planner) lose(r *row) {
	if r.Module != "" {
		p.names[r.Module] = true
	}
	if !r.Holder {
		p.drop(r)
		return
	}
	if p.commit.Unwatched {
		p.bury(r, fmt.Sprintf("%s: repository %s is no longer watched", p.file(r.Path), p.commit.URL))
		return
	}
	p.bury(r, fmt.Sprintf("%s: not in %s at commit %s; a module's file stands at its path and is called %s",
		p.file(r.Path), p.commit.URL, short(p.commit.Hash), source.FileName))
}

// bury makes r the reminder of a module that is no longer anywhere.
func (p *planner) bury(r *row, why string) {
	p.names[r.Module] = true
	r.State, r.Error = StateRemoved, why
	r.SeenAt = p.commit.Now
	if !p.commit.Unwatched {
		r.Commit, r.CommittedAt = p.commit.Hash, p.commit.CommittedAt
	}
	p.rows[r] = true
}

func (p *planner) drop(r *row) {
	if r.ID != 0 {
		p.gone = append(p.gone, r.ID)
	}
	delete(p.rows, r)
}

// settle decides who holds name: the holder while its file is there, else the first claimant,
// one of the same repository before others.
func (p *planner) settle(name string, rows []*row) {
	var holder *row
	var claims []*row
	for _, r := range rows {
		switch {
		case r.Holder:
			holder = r
		case r.State == StateConflict:
			claims = append(claims, r)
		}
	}
	slices.SortFunc(claims, func(a, b *row) int { return p.precedence(holder, a, b) })
	if (holder == nil || holder.State == StateRemoved) && len(claims) > 0 {
		heir := claims[0]
		claims = claims[1:]
		if holder != nil {
			p.drop(holder)
			if holder.Repository != heir.Repository || holder.Path != heir.Path {
				p.report.Moved = append(p.report.Moved, name)
			}
		}
		heir.Holder, heir.State, heir.Error = true, StateOK, ""
		p.rows[heir] = true
		p.report.Changed = append(p.report.Changed, name)
		holder = heir
	}
	for _, claim := range claims {
		claim.Error = fmt.Sprintf("module %q is at two places: %s in %s, which came first and stands, and %s in %s; rename one of them",
			name, p.file(holder.Path), holder.URL, p.file(claim.Path), claim.URL)
		p.rows[claim] = true
		p.report.Conflicts = append(p.report.Conflicts, name)
	}
	if holder != nil && holder.State == StateRemoved && p.rows[holder] {
		p.report.Removed = append(p.report.Removed, name)
	}
}

func (p *planner) precedence(last, a, b *row) int {
	if last != nil && (a.Repository == last.Repository) != (b.Repository == last.Repository) {
		if a.Repository == last.Repository {
			return -1
		}
		return 1
	}
	if (a.ID == 0) != (b.ID == 0) {
		if b.ID == 0 {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.ID, b.ID), strings.Compare(a.Path, b.Path))
}

func (p *planner) outcome() outcome {
	o := outcome{Delete: p.gone, Report: p.report}
	for r, write := range p.rows {
		if write {
			o.Write = append(o.Write, r)
		}
	}
	slices.SortFunc(o.Write, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), strings.Compare(a.Path, b.Path), strings.Compare(a.Module, b.Module))
	})
	for _, list := range []*[]string{&o.Report.Changed, &o.Report.Removed, &o.Report.Moved, &o.Report.Conflicts, &o.Report.Invalid} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return o
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
