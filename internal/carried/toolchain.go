package carried

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ToolchainReference is the public image that [Toolchain] stands for, without its tag, which
// is the version of Go as the public image's moving tag has it: 1.26 for every 1.26.x.
const ToolchainReference = "docker.io/library/golang"

// Toolchain is the Go toolchain that this machine's `go` is, with the machine's certificates.
// What only testing Go itself needs is left out.
func Toolchain(ctx context.Context, cache string) (Image, error) {
	out, err := output(ctx, "go", "env", "GOROOT", "GOVERSION")
	if err != nil {
		return Image{}, fmt.Errorf("carry the Go toolchain: %w", err)
	}
	root, version, _ := strings.Cut(strings.TrimSpace(out), "\n")
	reference := ToolchainReference + ":" + minor(version)
	key, err := packages(ctx) // the certificates are one's
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	return cached(cache, "golang", root+"\n"+version+"\n"+key, reference, func(dir string) error {
		t, err := toolchainTree(root)
		if err != nil {
			return err
		}
		if err := t.certificates(); err != nil {
			return err
		}
		t.dir("go", 0o777)
		return write(dir, t, v1.Config{
			Env: []string{
				"PATH=/go/bin:/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"GOPATH=/go", "GOTOOLCHAIN=local", "CGO_ENABLED=0",
			},
			WorkingDir: "/go",
		})
	})
}

// minor shortens go1.26.8 to 1.26.
func minor(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "go"), ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func toolchainTree(root string) (tree, error) {
	t := base()
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	err = t.copied(resolved, "usr/local/go", func(relative string) bool {
		switch relative {
		case "api", "doc", "test", "misc", "pkg/obj":
			return true
		}
		return path.Base(relative) == "testdata" || strings.HasSuffix(relative, "_test.go")
	})
	return t, err
}
