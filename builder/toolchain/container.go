package toolchain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/builder/engine"
	"github.com/mesh-control/mesh/registry"
)

// Container compiles in containers of a toolchain image: each step in one of its own, all on
// one volume that goes with the compilation. Files go in and out by the engine's archive API.
type Container struct {
	Language string
	Engine   *engine.Engine
	Registry *registry.Client
	Owner    string // the builder's name; volumes are called after it
	Image    string // reference with tag or digest, as "docker.io/library/golang:1.26@sha256:…"
	Work     string // directory for the image on its way to the engine
	Proxy    string // as of [Host]
	CABundle string // as of [Host]
	Limits   engine.Limits

	mu      sync.Mutex
	version string
	digest  string // of the image
}

// Where things stand in a container: the compilation's volume, and the caches.
const (
	inside      = "/mesh"
	insideCache = "/cache"
)

// tag is the toolchain image's name inside the engine.
func (c *Container) tag() string { return "mesh-toolchain/" + c.Owner + ":" + c.Language }

func (c *Container) path() string {
	return "PATH=" + strings.Join(append(append([]string{}, languages[c.Language].path...), "/usr/bin", "/bin"), ":")
}

// Version implements [Toolchain]. The first call brings the image to the engine.
func (c *Container) Version(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version != "" {
		return c.version, nil
	}
	if err := c.load(ctx); err != nil {
		return "", fmt.Errorf("bring toolchain image %s to the engine: %w", c.Image, err)
	}
	l := languages[c.Language]
	var lines []string
	for _, ask := range l.asks {
		var out []string
		env := append([]string{c.path(), "GOCACHE=off", "HOME=/dev/null", "npm_config_logs_max=0", "npm_config_cache=/tmp"}, steady...)
		if c.Language == Go {
			env = append(env, goEnvironment(false, "", "readonly")...)
		}
		err := c.Engine.Run(ctx, engine.RunSpec{Image: c.tag(), Command: ask, Network: "none", Env: env}, func(line string) { out = append(out, line) })
		if err != nil {
			return "", fmt.Errorf("run %s in %s: %w: %s", strings.Join(ask, " "), c.Image, err, strings.Join(out, "; "))
		}
		lines = append(lines, strings.TrimSpace(strings.Join(out, "\n")))
	}
	version, err := l.parse(lines)
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.Image, err)
	}
	c.version = version
	return version, nil
}

func (c *Container) load(ctx context.Context) error {
	dir, err := os.MkdirTemp(c.Work, "toolchain-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r, w := io.Pipe()
	saved := make(chan error, 1)
	var image registry.Saved
	go func() {
		var err error
		image, err = c.Registry.SaveImage(ctx, c.Image, "linux/"+runtime.GOARCH, c.tag(), dir, w)
		w.CloseWithError(err)
		saved <- err
	}()
	err = c.Engine.Load(ctx, r)
	r.CloseWithError(io.ErrClosedPipe)
	if why := <-saved; why != nil && !errors.Is(why, io.ErrClosedPipe) {
		return why
	}
	c.digest = image.Digest
	return err
}

// Compile implements [Toolchain].
func (c *Container) Compile(ctx context.Context, job Compilation) (Product, error) {
	at := place{
		src: inside + "/src", out: inside + "/out", home: inside + "/home", tmp: inside + "/tmp",
		cache: func(name string) string { return path.Join(insideCache, name) }, proxy: c.Proxy,
	}
	if c.CABundle != "" {
		at.certificates = inside + "/ca.pem"
	}
	j, err := plan(c.Language, job, at)
	if err != nil {
		return Product{}, err
	}
	if len(j.steps) == 0 {
		return j.finish(job.Source)
	}
	if _, err := c.Version(ctx); err != nil {
		return Product{}, err
	}
	product := filepath.Join(job.Scratch, "product")
	if err := c.steps(ctx, job, at, j, product); err != nil {
		return Product{}, err
	}
	entries, err := walk(product)
	if err != nil {
		return Product{}, err
	}
	made, err := j.finish(entries)
	made.Image, made.ImageDigest = c.Image, c.digest
	return made, err
}

// steps runs them on a volume that holds the source, and takes what they leave.
func (c *Container) steps(ctx context.Context, job Compilation, at place, j *job, product string) (err error) {
	input := filepath.Join(job.Scratch, "input.tar")
	if err := c.writeInput(input, job.Source); err != nil {
		return err
	}
	volume, err := c.Engine.MakeVolume(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Engine.RemoveVolume(ctx, volume)) }()
	for i, s := range j.steps {
		spec := engine.RunSpec{
			Image: c.tag(), Command: s.args, Directory: at.src, Limits: c.Limits, Network: "none",
			Env:    append(append([]string{c.path(), "HOME=" + at.home, "TMPDIR=" + at.tmp}, steady...), s.env...),
			Mounts: []engine.Mount{{Volume: volume, Target: inside}},
		}
		if s.network {
			spec.Network = "bridge"
		}
		for _, name := range languages[c.Language].caches {
			spec.Mounts = append(spec.Mounts, engine.Mount{
				Volume: "mesh-" + c.Owner + "-" + c.Language + "-" + name, Target: at.cache(name), ReadOnly: !s.caches,
			})
		}
		var in *os.File
		if i == 0 {
			if in, err = os.Open(input); err != nil {
				return err
			}
			spec.In = []engine.Input{{Directory: inside, Tar: in}}
		}
		if i == len(j.steps)-1 {
			spec.Out, spec.Take = j.collect, func(r io.Reader) error { return unpack(r, product, job.Limit) }
		}
		err := c.Engine.Run(ctx, spec, job.Log)
		if in != nil {
			in.Close()
		}
		var exit *engine.ExitError
		if errors.As(err, &exit) {
			err = &exitError{program: s.args[0], status: exit.Status}
		}
		if err != nil {
			return stepFailed(s, err)
		}
	}
	return nil
}

// writeInput packs what the volume begins with.
func (c *Container) writeInput(name string, source []archive.Entry) error {
	all := moved(source, "src", nil)
	for _, dir := range []string{"src", "out", "home", "tmp"} {
		all = append(all, archive.Entry{Name: dir, Kind: archive.Directory})
	}
	if c.CABundle != "" {
		ca, err := os.ReadFile(c.CABundle)
		if err != nil {
			return fmt.Errorf("read CA bundle: %w", err)
		}
		all = append(all, text("ca.pem", string(ca)))
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(archive.PackContext(f, all), f.Close())
}
