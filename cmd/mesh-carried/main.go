// Command mesh-carried writes the images a mesh is carried with as OCI layouts, and prints for
// each the reference it stands for and where it lies.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/mesh-control/mesh/internal/carried"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mesh-carried DIR")
		os.Exit(2)
	}
	images, err := all(ctx, os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "mesh-carried:", err)
		os.Exit(1)
	}
	for _, image := range images {
		fmt.Println(image.Reference, image.Dir)
	}
}

// all finds the registry's program where make build puts it, beside this one.
func all(ctx context.Context, cache string) ([]carried.Image, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return carried.All(ctx, cache, filepath.Join(filepath.Dir(self), "mesh-registry"))
}
