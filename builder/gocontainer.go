package builder

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/registry"
)

// ContainerGo compiles in a container of a toolchain image: once with a network to fetch what
// go.sum names, once without to compile. Files go in and out by the engine's archive API.
type ContainerGo struct {
	Engine   *engine.Engine
	Registry *registry.Client
	Owner    string // the builder's name; caches are volumes called after it
	Image    string // reference with tag or digest, as "registry.mesh/carried/docker.io/library/golang:1.26"
	Work     string // directory for the image on its way to the engine
	Proxy    string // GOPROXY while dependencies are fetched; "" is Go's default
	CABundle string // file of certificates for that; "" leaves the image's
	Memory   int64

	mu      sync.Mutex
	version string
}

// tag is the toolchain image's name inside the engine.
func (c *ContainerGo) tag() string {
	return "mesh-toolchain/" + c.Owner + ":go"
}

// Version implements [Toolchain]. The first call brings the image to the engine.
func (c *ContainerGo) Version(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version != "" {
		return c.version, nil
	}
	if err := c.load(ctx); err != nil {
		return "", err
	}
	var out []string
	err := c.Engine.Run(ctx, engine.RunSpec{
		Image: c.tag(), Command: []string{"go", "env", "GOVERSION"}, Network: "none",
		Env: append(goEnvironment(false, "", "readonly"), "GOCACHE=off", "HOME=/"),
	}, func(line string) { out = append(out, line) })
	if err != nil {
		return "", fmt.Errorf("run go env in %s: %w", c.Image, err)
	}
	c.version = strings.TrimSpace(strings.Join(out, "\n"))
	return c.version, nil
}

func (c *ContainerGo) load(ctx context.Context) error {
	dir, err := os.MkdirTemp(c.Work, "toolchain-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r, w := io.Pipe()
	go func() {
		_, err := c.Registry.SaveImage(ctx, c.Image, platform, c.tag(), dir, w)
		w.CloseWithError(err)
	}()
	defer r.Close()
	return c.Engine.Load(ctx, r)
}

// Compile implements [Toolchain].
func (c *ContainerGo) Compile(ctx context.Context, job Compilation) error {
	if _, err := c.Version(ctx); err != nil {
		return err
	}
	input := filepath.Join(job.Scratch, "input.tar")
	if err := c.writeInput(input, job.Source); err != nil {
		return packFailure(err)
	}
	mode := moduleMode(job.Source)
	fetch := engine.RunSpec{
		Command: []string{"go", "list", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", job.Package},
		Env:     goEnvironment(true, c.Proxy, mode), Network: "bridge",
	}
	if c.CABundle != "" {
		fetch.Env = append(fetch.Env, "SSL_CERT_FILE=/mesh/ca.pem")
	}
	if err := c.run(ctx, fetch, input, job.Log); err != nil {
		return fmt.Errorf("fetch dependencies: %w", err)
	}
	return c.run(ctx, engine.RunSpec{
		Command: append(append([]string{"go"}, goFlags...), "-o", "/mesh/out/", job.Package),
		Env:     goEnvironment(false, "", mode), Network: "none",
		Out: "/mesh/out", Take: func(r io.Reader) error { return takeOut(r, job.Out) },
	}, input, job.Log)
}

func (c *ContainerGo) run(ctx context.Context, spec engine.RunSpec, input string, log func(string)) error {
	f, err := os.Open(input)
	if err != nil {
		return err
	}
	defer f.Close()
	spec.Image, spec.Directory, spec.Memory = c.tag(), "/mesh/src", c.Memory
	spec.In = []engine.Input{{Directory: "/", Tar: f}}
	spec.Volumes = map[string]string{"/mesh/mod": "mesh-" + c.Owner + "-go-mod", "/mesh/build": "mesh-" + c.Owner + "-go-build"}
	spec.Env = append(spec.Env, "HOME=/mesh/home", "TMPDIR=/mesh/tmp", "GOPATH=/mesh/home/go", "GOMODCACHE=/mesh/mod", "GOCACHE=/mesh/build")
	return c.Engine.Run(ctx, spec, log)
}

// writeInput packs what the container needs beneath /mesh.
func (c *ContainerGo) writeInput(name string, source []archive.Entry) error {
	var all []archive.Entry
	for _, dir := range []string{"src", "out", "home", "tmp"} {
		all = append(all, archive.Entry{Name: "mesh/" + dir, Kind: archive.Directory})
	}
	for _, e := range source {
		e.Name = path.Join("mesh/src", e.Name)
		all = append(all, e)
	}
	if c.CABundle != "" {
		ca, err := os.ReadFile(c.CABundle)
		if err != nil {
			return fmt.Errorf("read CA bundle: %w", err)
		}
		all = append(all, archive.Entry{
			Name: "mesh/ca.pem", Size: int64(len(ca)),
			Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(ca)), nil },
		})
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := archive.PackContext(f, all); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// takeOut writes the programs of the container's output directory into dir. Nothing but
// regular files directly in it is taken.
func takeOut(r io.Reader, dir string) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read programs: %w", err)
		}
		name := path.Base(h.Name)
		if h.Typeflag != tar.TypeReg || path.Dir(path.Clean(h.Name)) != "out" {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, tr)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("read program %s: %w", name, err)
		}
	}
}
