package catalogue

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/mesh-control/mesh/internal/git"
)

// watcher watches directories that hold refs and calls woke for the repository they belong
// to. Directories, never files: git replaces a file by renaming another over it, and a watch
// on the old one would go blind. A directory that was itself replaced goes silent without an
// error, so [watcher.check] compares what is watched with what is there; an overflow means
// that every repository may have moved.
//
// A machine out of watches, or without the facility, leaves polling: check tries again.
type watcher struct {
	log    *slog.Logger
	woke   func(id int64)
	events *fsnotify.Watcher // nil: not available
	mu     sync.Mutex
	views  map[int64]*view
}

// view is what is watched for one repository.
type view struct {
	root string // as asked for
	// target is the git directory, or where one is to appear. Beside it lies its parent,
	// watched for the one event that target came or went.
	target string
	// directories and what they were when the watch was set.
	directories map[string]fs.FileInfo
}

// concerns says whether an event at name may mean that a ref moved.
func (v *view) concerns(name string) bool {
	if name == v.target || name == v.root {
		return true
	}
	directory := filepath.Dir(name)
	_, watched := v.directories[directory]
	return watched && directory != filepath.Dir(v.target)
}

func newWatcher(log *slog.Logger, woke func(int64)) *watcher {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("directories cannot be watched; polling alone", "error", err)
		events = nil
	}
	return &watcher{log: log, woke: woke, events: events, views: map[int64]*view{}}
}

// run hands events on until ctx ends.
func (w *watcher) run(ctx context.Context) {
	if w.events == nil {
		return
	}
	defer w.events.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-w.events.Events:
			if !ok {
				return
			}
			w.handle(event)
		case err, ok := <-w.events.Errors:
			if !ok {
				return
			}
			w.log.Warn("watch directories", "error", err)
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				w.rescan()
			}
		}
	}
}

func (w *watcher) handle(event fsnotify.Event) {
	if strings.HasSuffix(event.Name, ".lock") || event.Has(fsnotify.Chmod) && event.Op == fsnotify.Chmod {
		return
	}
	reshaped := event.Has(fsnotify.Create) || event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)
	for _, id := range w.concerned(event.Name) {
		if reshaped {
			w.check(id)
		}
		w.woke(id)
	}
}

// concerned are the repositories that an event at name may mean.
func (w *watcher) concerned(name string) []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []int64
	for id, v := range w.views {
		if v.concerns(name) {
			ids = append(ids, id)
		}
	}
	return ids
}

// rescan looks at every repository again.
func (w *watcher) rescan() {
	w.mu.Lock()
	ids := slices.Collect(maps.Keys(w.views))
	w.mu.Unlock()
	for _, id := range ids {
		w.check(id)
		w.woke(id)
	}
}

// set names the directory watched for a repository; "" ends that.
func (w *watcher) set(id int64, root string) {
	w.mu.Lock()
	v := w.views[id]
	switch {
	case root == "" && v != nil:
		delete(w.views, id)
		for name := range v.directories {
			w.unwatch(name)
		}
	case root == "":
	case v == nil:
		w.views[id] = &view{root: filepath.Clean(root), directories: map[string]fs.FileInfo{}}
	default:
		v.root = filepath.Clean(root)
	}
	w.mu.Unlock()
	w.check(id)
}

// check brings the watches of a repository in line with the directories that are there now.
func (w *watcher) check(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.views[id]
	if v == nil || w.events == nil {
		return
	}
	var wanted map[string]fs.FileInfo
	v.target, wanted = refDirectories(v.root)
	for name, before := range v.directories {
		if now, ok := wanted[name]; ok && os.SameFile(now, before) {
			delete(wanted, name)
			continue
		}
		delete(v.directories, name)
		w.unwatch(name)
	}
	for name, info := range wanted {
		if err := w.events.Add(name); err != nil {
			w.log.Warn("watch directory; polling finds what it misses", "directory", name, "error", err)
			return
		}
		v.directories[name] = info
	}
}

// unwatch ends the watch of a directory nobody else asks for. The caller holds mu.
func (w *watcher) unwatch(name string) {
	for _, v := range w.views {
		if _, ok := v.directories[name]; ok {
			return
		}
	}
	if w.events != nil {
		_ = w.events.Remove(name) // already gone when its directory is
	}
}

// refDirectories are the directories in which a change of a ref shows: the git directory
// (HEAD, packed-refs), every one below refs, and the parent, in which a replacement shows.
func refDirectories(root string) (target string, found map[string]fs.FileInfo) {
	found = map[string]fs.FileInfo{}
	add := func(name string) {
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			found[name] = info
		}
	}
	target, err := git.Directory(root)
	if err != nil {
		add(root)
		add(filepath.Dir(root))
		return root, found
	}
	add(target)
	add(filepath.Dir(target))
	common := git.CommonDirectory(target)
	add(common)
	_ = filepath.WalkDir(filepath.Join(common, "refs"), func(name string, entry fs.DirEntry, err error) error {
		// What went while it was looked at has an event of its own.
		if err == nil && entry.IsDir() {
			add(name)
		}
		return nil
	})
	return target, found
}
