package builder_test

import (
	"io"
	"runtime"
	"strings"

	"github.com/mesh-control/mesh/builder/archive"
)

const platform = "linux/" + runtime.GOARCH

func memory(name, text string) archive.Entry {
	return archive.Entry{Name: name, Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}
