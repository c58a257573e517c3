package schema

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func BenchmarkParse(b *testing.B) {
	for doc, texts := range accepted(b) {
		for file, data := range texts {
			b.Run(strings.TrimSuffix(strings.TrimPrefix(file, "testdata/accepted/"), ".json"), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := parseAs(doc, file, data); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkFirstParse(b *testing.B) {
	for b.Loop() {
		newEngine().definition("Module")
	}
}

// processorTime is what this process has used so far: other programs on the machine do not count.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Many different manifests leave the heap as large as few do, and take less than 2 ms each.
func TestManifestsAreQuickAndMemoryIsFlat(t *testing.T) {
	text := accepted(t)["manifest"]["testdata/accepted/manifest-web.json"]
	parse := func(from, to int) {
		for i := from; i < to; i++ {
			// Other names each time: labels are what a CUE context remembers for ever.
			data := bytes.ReplaceAll(text, []byte(`"TITLE"`), fmt.Appendf(nil, `"TITLE_%d"`, i))
			if _, err := ParseManifest("manifest", data); err != nil {
				t.Fatal(err)
			}
		}
	}
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	batches, size := 5, 500
	if testing.Short() {
		batches, size = 2, 100
	}
	parse(0, 200)
	before, least := heap(), time.Hour
	for i := range batches {
		began := processorTime(t)
		parse(200+i*size, 200+(i+1)*size)
		least = min(least, (processorTime(t)-began)/time.Duration(size))
	}
	grown := int64(heap()) - int64(before)
	t.Logf("%v of processor a manifest, heap grown by %d KiB over %d", least, grown>>10, batches*size)
	if least > 2*time.Millisecond && !raceDetector {
		t.Errorf("%v of processor a manifest, want under 2 ms", least)
	}
	if grown > 16<<20 {
		t.Errorf("heap grown by %d MiB over %d manifests", grown>>20, batches*size)
	}
}
