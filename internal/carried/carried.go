package carried

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Image is an OCI layout on disk and the reference it is carried under.
type Image struct {
	Reference string // docker.io/library/postgres:15
	Dir       string
}

// format changes whenever what is written changes for the same files.
const format = "1"

// All makes every image, or takes it from the cache. registry is the program of [Registry].
func All(ctx context.Context, cache, registry string) ([]Image, error) {
	makers := []func(context.Context, string) (Image, error){Busybox, Postgres, Broker, Registry(registry), Toolchain, Node, Rust, Python}
	images := make([]Image, len(makers))
	group, ctx := errgroup.WithContext(ctx)
	for i, maker := range makers {
		group.Go(func() (err error) {
			images[i], err = maker(ctx, cache)
			return err
		})
	}
	return images, group.Wait()
}

// cached gives the layout for a key, made by fill when the cache has none. Half of one is
// never seen: it is made beside and renamed.
func cached(cache, name, key, reference string, fill func(dir string) error) (Image, error) {
	sum := sha256.Sum256([]byte(format + "\n" + reference + "\n" + key))
	image := Image{Reference: reference, Dir: filepath.Join(cache, name+"-"+hex.EncodeToString(sum[:8]))}
	if _, err := os.Stat(filepath.Join(image.Dir, "index.json")); err == nil {
		return image, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	dir, err := os.MkdirTemp(cache, "."+name+"-")
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	defer os.RemoveAll(dir)
	if err := fill(dir); err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	if err := os.Rename(dir, image.Dir); err != nil {
		if _, there := os.Stat(filepath.Join(image.Dir, "index.json")); there == nil {
			return image, nil // another process was faster
		}
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	return image, nil
}

// packages is the state of the machine's packages, as a key.
func packages(ctx context.Context) (string, error) {
	return output(ctx, "dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n")
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	return outputIn(ctx, "", name, args...)
}

func outputIn(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
