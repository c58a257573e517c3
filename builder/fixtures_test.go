package builder_test

import (
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/buildertest"
)

const platform = "linux/" + runtime.GOARCH

func memory(name, text string) archive.Entry {
	return archive.Entry{Name: name, Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

func timeout() <-chan time.Time { return time.After(buildertest.Patience) }
