package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/mesh-control/mesh/builder/lines"
	"github.com/mesh-control/mesh/registry"
)

// Label marks what a builder made; its value is the builder's name.
const Label = registry.BuilderLabel

// Engine is a connection to one container engine. Its methods may be used concurrently.
type Engine struct {
	api   *client.Client
	owner string
}

// Open makes an Engine for a socket such as "unix:///run/docker.sock". Owner is the
// builder's name. Nothing is sent yet.
func Open(host, owner string) (*Engine, error) {
	api, err := client.New(client.WithHost(host))
	if err != nil {
		return nil, fmt.Errorf("open container engine %s: %w", host, err)
	}
	return &Engine{api: api, owner: owner}, nil
}

// Close ends idle connections.
func (e *Engine) Close() error { return e.api.Close() }

// Ping asks whether the engine answers.
func (e *Engine) Ping(ctx context.Context) error {
	if _, err := e.api.Ping(ctx, client.PingOptions{}); err != nil {
		return fmt.Errorf("reach container engine %s: %w", e.api.DaemonHost(), err)
	}
	return nil
}

// Tag is the name an image of this builder has inside the engine while it is needed.
func (e *Engine) Tag(build string) string {
	return "mesh-build/" + e.owner + ":" + build
}

// BuildSpec is one classic build. Context is a tar; Network is "none" or the engine's
// network.
type BuildSpec struct {
	Context    io.Reader
	Dockerfile string
	Args       map[string]string
	Network    string
	Limits     Limits
	Tag        string
}

// period is the time, in microseconds, of which a limit of processors is a share.
const period = 100_000

func cpuPeriod(l Limits) int64 {
	if l.CPUs == 0 {
		return 0
	}
	return period
}

// Build runs the Dockerfile without any cache and gives the engine's lines to log.
func (e *Engine) Build(ctx context.Context, spec BuildSpec, log func(string)) error {
	args := map[string]*string{}
	for k, v := range spec.Args {
		args[k] = &v
	}
	if spec.Limits.Processes > 0 {
		defer e.limitSteps(ctx, spec.Limits.Processes, log)()
	}
	res, err := e.api.ImageBuild(ctx, spec.Context, client.ImageBuildOptions{
		Tags: []string{spec.Tag}, Dockerfile: spec.Dockerfile, BuildArgs: args, NetworkMode: spec.Network,
		Memory: spec.Limits.Memory, MemorySwap: spec.Limits.Memory, CPUPeriod: cpuPeriod(spec.Limits), CPUQuota: int64(spec.Limits.CPUs * period),
		NoCache: true, Remove: true, ForceRemove: true, Version: build.BuilderV1,
	})
	if err != nil {
		return fmt.Errorf("build image: %w", err)
	}
	defer res.Body.Close()
	if err := messages(res.Body, log); err != nil {
		return fmt.Errorf("build image: %w", err)
	}
	return nil
}

// messages reads the engine's stream to its end, and fails when it tells of a failure.
func messages(r io.Reader, log func(string)) error {
	said := &lines.Writer{Say: log}
	defer said.Flush()
	dec := json.NewDecoder(r)
	for {
		var m jsonstream.Message
		if err := dec.Decode(&m); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if m.Error != nil {
			return errors.New(strings.TrimSpace(m.Error.Message))
		}
		_, _ = io.WriteString(said, m.Stream)
	}
}

// Save writes an image as a tar in the form of `docker save`.
func (e *Engine) Save(ctx context.Context, image string, w io.Writer) error {
	r, err := e.api.ImageSave(ctx, []string{image})
	if err != nil {
		return fmt.Errorf("save image %s: %w", image, err)
	}
	defer r.Close()
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("save image %s: %w", image, err)
	}
	return nil
}

// Load reads a tar in the form of `docker save`.
func (e *Engine) Load(ctx context.Context, r io.Reader) error {
	res, err := e.api.ImageLoad(ctx, r)
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer res.Close()
	if err := messages(bufio.NewReader(res), func(string) {}); err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	return nil
}

// Has says whether the engine holds an image by this name.
func (e *Engine) Has(ctx context.Context, image string) (bool, error) {
	_, err := e.api.ImageInspect(ctx, image)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inspect image %s: %w", image, err)
	}
	return true, nil
}

// Label is what a Dockerfile puts on its stages for [Engine.Clear] to find what became of them.
func (e *Engine) Label() string { return fmt.Sprintf("%s=%q", Label, e.owner) }

func (e *Engine) ours() client.Filters { return client.Filters{}.Add("label", Label+"="+e.owner) }

// Clear removes what image builds of this builder left: the container of a step that a
// cancelled build was at, and the images of steps, which have no name. The engine goes on with
// a cancelled build for a moment, so it is looked at until nothing is found.
func (e *Engine) Clear(ctx context.Context) error {
	for {
		containers, err := e.removeContainers(ctx)
		if err != nil {
			return err
		}
		steps := e.ours().Add("dangling", "true")
		if _, err := e.api.ImagePrune(ctx, client.ImagePruneOptions{Filters: steps}); err != nil && !errdefs.IsConflict(err) {
			return fmt.Errorf("remove images of steps: %w", err)
		}
		images, err := e.api.ImageList(ctx, client.ImageListOptions{Filters: steps})
		if err != nil {
			return fmt.Errorf("list images: %w", err)
		}
		if containers+len(images.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d containers and %d images of an image build are left: %w", containers, len(images.Items), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// removeContainers removes this builder's containers, and says how many there were.
func (e *Engine) removeContainers(ctx context.Context) (int, error) {
	containers, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: e.ours()})
	if err != nil {
		return 0, fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, c := range containers.Items {
		if err := e.removeContainer(ctx, c.ID); !errdefs.IsConflict(err) { // else it is being removed
			errs = append(errs, err)
		}
	}
	return len(containers.Items), errors.Join(errs...)
}

// Remove removes an image's name, and the image when that was its last.
func (e *Engine) Remove(ctx context.Context, image string) error {
	_, err := e.api.ImageRemove(ctx, image, client.ImageRemoveOptions{PruneChildren: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove image %s: %w", image, err)
	}
	return nil
}

// Sweep removes the containers and images that earlier lives of this builder left.
func (e *Engine) Sweep(ctx context.Context) error {
	errs := []error{e.Clear(ctx)}
	errs = append(errs, e.sweepVolumes(ctx))
	images, err := e.api.ImageList(ctx, client.ImageListOptions{
		Filters: client.Filters{}.Add("reference", "mesh-build/"+e.owner),
	})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, image := range images.Items {
		for _, tag := range image.RepoTags {
			errs = append(errs, e.Remove(ctx, tag))
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) removeContainer(ctx context.Context, id string) error {
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}
