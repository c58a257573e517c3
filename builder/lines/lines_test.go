package lines_test

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/builder/lines"
)

func TestLinesAreWholeHoweverTheyAreWritten(t *testing.T) {
	const text = "one\r\n\n  two  \n10 %\r50 %\r100 %\nlast"
	want := []string{"one", "  two", "10 %", "50 %", "100 %", "last"}
	for size := 1; size <= len(text); size++ {
		var got []string
		w := &lines.Writer{Say: func(line string) { got = append(got, line) }}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			if _, err := io.WriteString(w, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		w.Flush()
		if !slices.Equal(got, want) {
			t.Errorf("written %d bytes at a time: %q, want %q", size, got, want)
		}
	}
}

func TestAnEndlessLineTakesNoMemoryAndHidesNothingAfterIt(t *testing.T) {
	var got []string
	w := &lines.Writer{Say: func(line string) { got = append(got, fmt.Sprint(len(line), " ", line[:3])) }}
	piece := []byte(strings.Repeat("x", 1<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 1 << 10 {
		_, _ = w.Write(piece)
	}
	_, _ = io.WriteString(w, "\nthe end\n")
	runtime.ReadMemStats(&after)
	if want := []string{fmt.Sprint(lines.Max, " xxx"), "7 the"}; !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("1 GiB without a newline allocated %d bytes", used)
	}
}
