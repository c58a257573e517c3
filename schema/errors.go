package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// MaxErrors is how many errors of one document are told; fixing those usually fixes the rest.
const MaxErrors = 20

// Error is one refusal, at a place in the text as its author wrote it. Line and Column
// start at 1; Column counts characters, not bytes. Path is like "resources[2].restart-on"
// and empty for the document itself.
type Error struct {
	File    string
	Line    int
	Column  int
	Path    string
	Message string
}

// Error reads like a compiler's: file:line:column: path: message.
func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", e.File, e.Line, e.Column, e.Path, e.Message)
}

// Errors is what every parser here returns when it refuses: at least one and at most
// [MaxErrors] errors, sorted by place, one per path.
type Errors []*Error

// Error is one line per error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// finding is an error on its way: a place by offset, turned into a line at the end.
type finding struct {
	offset  int
	path    string
	message string
}

// findings collects in the order of the pipeline: the first to speak of a path is the one
// that is kept, because later steps see only the consequences.
type findings struct {
	list  []finding
	paths map[string]bool
}

func (f *findings) add(offset int, path, format string, args ...any) {
	if f.paths == nil {
		f.paths = make(map[string]bool)
	}
	if f.paths[path] {
		return
	}
	f.paths[path] = true
	f.list = append(f.list, finding{offset, path, fmt.Sprintf(format, args...)})
}

// errors gives the collected findings as [Errors], or nil.
func (f *findings) errors(file string, data []byte) error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.path, b.path))
	})
	list := f.list[:min(len(f.list), MaxErrors)]
	out := make(Errors, 0, len(list))
	at := position{data: data}
	for _, one := range list {
		line, column := at.of(one.offset)
		out = append(out, &Error{File: file, Line: line, Column: column, Path: one.path, Message: one.message})
	}
	return out
}

// position turns growing offsets into lines and columns in one pass over the text.
type position struct {
	data  []byte
	next  int // offset already counted
	line  int // lines before next
	start int // offset of the current line
}

func (p *position) of(offset int) (line, column int) {
	offset = min(offset, len(p.data))
	for ; p.next < offset; p.next++ {
		if p.data[p.next] == '\n' {
			p.line++
			p.start = p.next + 1
		}
	}
	return p.line + 1, len([]rune(string(p.data[p.start:offset]))) + 1
}
