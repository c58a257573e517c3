package catalogue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/schema"
)

// follow is the life of one repository's loop: look, then wait for the interval, a longer one
// after failures, or a wake-up.
func (s *Service) follow(ctx context.Context, m *member, watcher *watcher) {
	log := s.log.With("repository", m.id)
	failures, spread := 0, true
	for {
		watcher.check(m.id)
		err := s.look(ctx, m.id)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
		case errors.Is(err, errOvertaken):
			m.nudge()
		default:
			failures++
			log.Warn("look at repository", "error", err, "failures", failures)
		}
		pause := s.pause(failures)
		if spread && failures == 0 {
			// All loops began at once: the first pause spreads them over the interval.
			spread, pause = false, time.Duration((0.1+0.9*rand.Float64())*float64(s.config.Poll))
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.wake:
		}
		timer.Stop()
	}
}

// pause is the interval, doubled for each failure after the second up to the ceiling: a
// server that restarts is found again within a tick or two.
func (s *Service) pause(failures int) time.Duration {
	doubled := min(max(failures-2, 0), 16)
	return jitter(min(s.config.Poll<<doubled, s.config.MaxBackoff))
}

// look asks where the ref stands and reads the commit when it moved.
func (s *Service) look(ctx context.Context, id int64) error {
	base, err := s.loadRepository(ctx, id)
	if err != nil || base.Removed || base.Suspended {
		return err
	}
	lane := s.lane(base)
	auth, err := s.credential(ctx, base)
	if err != nil {
		return s.failed(ctx, base, err)
	}
	head, err := s.ask(ctx, base, auth, lane)
	if err != nil {
		return s.failed(ctx, base, err)
	}
	// A commit that is the tip of nothing has a name only once it was fetched.
	if head.Commit == base.Commit && (head.Ref == base.HeadRef || head.Ref == "") && base.Reader == readingRules {
		return s.idle(ctx, base)
	}
	began := time.Now()
	err = s.read(ctx, base, auth, lane)
	if err != nil {
		return s.failed(ctx, base, err)
	}
	s.metrics.read.Observe(time.Since(began).Seconds())
	return nil
}

func (s *Service) ask(ctx context.Context, base repository, auth *git.Credential, lane *lane) (git.Head, error) {
	if !enter(ctx, lane.ask) {
		return git.Head{}, ctx.Err()
	}
	defer leave(lane.ask)
	ctx, cancel := context.WithTimeout(ctx, s.config.AskTimeout)
	defer cancel()
	return s.git.LsRemote(ctx, base.URL, base.Ref, auth)
}

// idle is a look that found nothing new. It writes only to end a failure, or to bring the
// times up to date now and then.
func (s *Service) idle(ctx context.Context, base repository) error {
	if base.State != StateOK {
		return s.recordState(ctx, base, StateOK, "", false)
	}
	if time.Since(base.LastChecked) > 10*s.config.Poll {
		return s.recordState(ctx, base, StateOK, "", true)
	}
	return nil
}

// failed records why the repository cannot be read. What is not the repository's doing (the
// database, the end of the process) is handed back and recorded nowhere.
func (s *Service) failed(ctx context.Context, base repository, err error) error {
	reason := git.ReasonOf(err)
	if reason == "" || ctx.Err() != nil {
		return err
	}
	var known *git.Error
	errors.As(err, &known)
	changed := base.State != string(reason)
	if changed || time.Since(base.LastChecked) > 10*s.config.Poll {
		if recordErr := s.recordState(ctx, base, string(reason), known.Message, !changed); recordErr != nil {
			return errors.Join(err, recordErr)
		}
	}
	return err
}

// read fetches the commit, finds its modules, parses what changed, and records it all.
func (s *Service) read(ctx context.Context, base repository, auth *git.Credential, lane *lane) error {
	if !enter(ctx, lane.fetch) {
		return ctx.Err()
	}
	defer leave(lane.fetch)
	bounded, cancel := context.WithTimeout(ctx, s.config.FetchTimeout)
	defer cancel()
	snapshot, err := s.git.Fetch(bounded, base.URL, base.Ref, auth)
	if err != nil {
		return err
	}
	found, err := s.compare(bounded, base, snapshot)
	if err = errors.Join(err, snapshot.Close()); err != nil {
		return err
	}
	told, err := s.record(ctx, base, snapshot.Head, snapshot.CommittedAt, found)
	if err != nil {
		return err
	}
	s.log.Info("recorded", "repository", base.URL, "commit", snapshot.Head.Commit,
		"changed", len(told.Changed), "removed", len(told.Removed), "conflicts", len(told.Conflicts), "invalid", len(told.Invalid))
	return nil
}

// comparison is a commit held against what is recorded of its repository.
type comparison struct {
	readings []reading
	places   []string // paths at which something differs: only their rows are loaded and written
	modules  int      // there are then
}

// compare reads what changed. What is recorded rests on the commit of base, which is held when
// the comparison is recorded.
func (s *Service) compare(ctx context.Context, base repository, snapshot *source.Snapshot) (comparison, error) {
	trees, err := s.loadTrees(ctx, base.ID)
	if err != nil {
		return comparison{}, err
	}
	files, err := snapshot.Walk(ctx, func(at, tree string) bool {
		return base.Reader == readingRules && trees[storablePath(at)] == tree
	})
	if err != nil {
		return comparison{}, err
	}
	c := comparison{readings: make([]reading, 0, len(files)), modules: len(trees)}
	for _, f := range files {
		if f.Known {
			c.readings = append(c.readings, reading{Path: storablePath(f.Path), Known: true})
			continue
		}
		if err := ctx.Err(); err != nil {
			return c, err
		}
		s.metrics.parsed.Inc()
		read := readFile(snapshot, f)
		c.readings = append(c.readings, read)
		c.places = append(c.places, read.Path)
		if _, recorded := trees[read.Path]; !recorded {
			c.modules++
		}
	}
	gone := lost(slices.Collect(maps.Keys(trees)), c.readings)
	c.places = append(c.places, gone...)
	c.modules -= len(gone)
	return c, nil
}

// readFile is the verdict on one module.json. Whatever is wrong with it is its own: an
// error of the reading, never of the commit.
func readFile(snapshot *source.Snapshot, f source.File) reading {
	r := reading{Path: storablePath(f.Path), Tree: f.Tree, Blob: f.Blob}
	name := path.Join(r.Path, source.FileName)
	if f.Problem != "" {
		r.Error = name + ": " + f.Problem
		return r
	}
	if !utf8.ValidString(f.Path) {
		r.Error = name + ": the path is not valid UTF-8"
		return r
	}
	data, err := snapshot.Read(f.Blob)
	if err != nil {
		r.Error = name + ": " + err.Error()
		return r
	}
	module, err := schema.ParseModule(name, data)
	if err != nil {
		r.Module, r.Error = looseName(data), storableText(err.Error())
		return r
	}
	document, err := json.Marshal(module)
	if err == nil {
		err = storable(document)
	}
	if err != nil {
		r.Module, r.Error = looseName(data), name+": "+err.Error()
		return r
	}
	r.Module, r.Document = module.Name, document
	return r
}

// looseName is what a file that is not valid seems to call its module, to show it by.
func looseName(data []byte) string {
	var named struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(data, &named) != nil || len(named.Name) > 63 {
		return ""
	}
	return storableText(named.Name)
}

// storable refuses what JSON can say and PostgreSQL cannot hold.
func storable(document []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil //nolint:nilerr // the end; what Marshal wrote is well formed
		}
		switch v := token.(type) {
		case string:
			if strings.ContainsRune(v, 0) {
				return errors.New("a string holds a NUL character")
			}
		case json.Number:
			if f, err := strconv.ParseFloat(v.String(), 64); err != nil || math.IsInf(f, 0) {
				return fmt.Errorf("the number %.40s is out of range", v)
			}
		}
	}
}

const textBytes = 8 << 10

func storableText(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > textBytes {
		s = strings.ToValidUTF8(s[:textBytes], "") + "…"
	}
	return s
}

// storablePath is a path as a column holds it: git's may be any bytes.
func storablePath(at string) string {
	if utf8.ValidString(at) {
		return at
	}
	return strconv.Quote(at)
}

func enter(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func leave(slots chan struct{}) { <-slots }
