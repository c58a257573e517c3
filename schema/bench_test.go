package schema

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
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

// Many different manifests leave the heap as large as few do. How long one takes is
// BenchmarkParse's to say: it differs more between machines than between versions.
func TestMemoryIsFlatOverManyManifests(t *testing.T) {
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
	count := 2500
	if testing.Short() {
		count = 200
	}
	parse(0, 200)
	before := heap()
	parse(200, 200+count)
	grown := int64(heap()) - int64(before)
	t.Logf("heap grown by %d KiB over %d", grown>>10, count)
	if grown > 16<<20 {
		t.Errorf("heap grown by %d MiB over %d manifests", grown>>20, count)
	}
}
