package schema

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
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
	count := 10_000
	if testing.Short() {
		count = 1_000
	}
	parse(0, 200)
	before, began := heap(), time.Now()
	parse(200, 200+count)
	each := time.Since(began) / time.Duration(count)
	grown := int64(heap()) - int64(before)
	t.Logf("%v a manifest, heap grown by %d KiB over %d", each, grown>>10, count)
	if each > 2*time.Millisecond {
		t.Errorf("%v a manifest, want under 2 ms", each)
	}
	if grown > 16<<20 {
		t.Errorf("heap grown by %d MiB over %d manifests", grown>>20, count)
	}
}
