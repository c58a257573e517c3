// Package lines turns what a program prints into lines, in bounded memory whatever it prints.
package lines

import (
	"bytes"
	"strings"
)

// Max is how many bytes of a line are kept; the rest of an overlong one is left out.
const Max = 64 << 10

// Writer calls Say with every line written to it that is not blank, without the space at its
// end. A carriage return ends a line too: progress bars write over theirs. It is not for use by
// several at once.
type Writer struct {
	Say func(line string)

	line []byte
}

// Write takes all of p and never fails.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			w.keep(p)
			break
		}
		w.keep(p[:end])
		w.Flush()
		p = p[end+1:]
	}
	return n, nil
}

func (w *Writer) keep(p []byte) {
	w.line = append(w.line, p[:min(len(p), Max-len(w.line))]...)
}

// Flush says what was written since the last line's end.
func (w *Writer) Flush() {
	if line := strings.TrimRight(string(w.line), " \t"); line != "" {
		w.Say(line)
	}
	w.line = w.line[:0]
}
