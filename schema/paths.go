package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The kinds of [OwnedPath] beside the types of resource.
const (
	PathSecret = "secret"
	PathGrants = "grants"
)

// OwnedPath is a path on a machine with what stands there: a directory, file or archive
// resource, a secret, or a provision's grants directory. Owner is how errors name it.
type OwnedPath struct {
	Path  string
	Kind  string
	Owner string
}

// PathConflict says that two entries cannot both have their paths; First and Second are
// indexes into what was checked, Second the one to tell of it.
type PathConflict struct {
	First, Second int
	Message       string
}

// PathConflicts finds the paths with two owners: the same path twice, anything inside an
// archive (which is replaced as a whole) and anything below a file. Only a grants directory
// may also be declared as a directory, for its mode and owner. Paths holding a reference
// are not known yet and are passed over.
func PathConflicts(paths []OwnedPath) []PathConflict {
	order := make([]int, 0, len(paths))
	for i, p := range paths {
		if !strings.Contains(p.Path, "${") {
			order = append(order, i)
		}
	}
	// With "/" before every other character, what is inside a path follows it directly.
	slices.SortStableFunc(order, func(a, b int) int { return comparePaths(paths[a].Path, paths[b].Path) })
	var conflicts []PathConflict
	var outer []int // the paths the current one is inside of, outermost first
	for _, i := range order {
		for len(outer) > 0 && !within(paths[i].Path, paths[outer[len(outer)-1]].Path) {
			outer = outer[:len(outer)-1]
		}
		for _, o := range outer {
			if message := conflict(paths[o], paths[i]); message != "" {
				// Told of the later one, unless the place matters more than the order.
				conflicts = append(conflicts, PathConflict{min(o, i), max(o, i), message})
				break
			}
		}
		outer = append(outer, i)
	}
	slices.SortFunc(conflicts, func(a, b PathConflict) int {
		return cmp.Or(cmp.Compare(a.Second, b.Second), cmp.Compare(a.First, b.First))
	})
	return conflicts
}

// conflict says why inner cannot be at or below outer, or nothing.
func conflict(outer, inner OwnedPath) string {
	switch {
	case outer.Path == inner.Path:
		if outer.Kind != inner.Kind && min(outer.Kind, inner.Kind) == TypeDirectory && max(outer.Kind, inner.Kind) == PathGrants {
			return ""
		}
		return fmt.Sprintf("%s has two owners, %s and %s; a path on the machine has one", clip(inner.Path), outer.Owner, inner.Owner)
	case outer.Kind == TypeArchive:
		return fmt.Sprintf("%s (%s) is inside %s, which %s replaces as a whole; put it beside", clip(inner.Path), inner.Owner, clip(outer.Path), outer.Owner)
	case outer.Kind == TypeFile, outer.Kind == PathSecret:
		return fmt.Sprintf("%s (%s) is below %s, which is a file (%s)", clip(inner.Path), inner.Owner, clip(outer.Path), outer.Owner)
	}
	return ""
}

// within says whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir) && path[len(dir)] == '/'
}

func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			switch {
			case a[i] == '/':
				return -1
			case b[i] == '/':
				return 1
			}
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}
