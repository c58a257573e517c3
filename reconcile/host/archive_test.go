package host

import (
	"bytes"
	"strings"
	"testing"
)

func TestACopyEndsWhereItsLimitIs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if n, err := copyBounded(&out, strings.NewReader("ten bytes."), 10, t.TempDir()); err != nil || n != 10 {
		t.Errorf("as announced: %d, %v", n, err)
	}
	if _, err := copyBounded(&out, strings.NewReader("eleven now."), 10, t.TempDir()); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("more than announced: %v", err)
	}
	// Nothing announced: what there is room for is the limit, and it is enough for this.
	if n, err := copyBounded(&out, strings.NewReader("unannounced"), 0, t.TempDir()); err != nil || n != 11 {
		t.Errorf("nothing announced: %d, %v", n, err)
	}
}
