// Package engine is the host's view of a container engine: Docker or Podman, spoken to over
// the Docker API with the version negotiated.
//
// A container of ours is known by its labels and by nothing else: [LabelNode], [LabelModule]
// and [LabelID] say which resource it is, [LabelSpec] which definition it was made from,
// [LabelGeneration] and [LabelEpoch] which declaration it came with. The name is derived
// ([Name]) and only prevents two of the same; a container that has the name and not the
// labels belongs to somebody else and is never touched.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// The labels of a container of ours.
const (
	LabelMesh       = "mesh.mesh"
	LabelNode       = "mesh.node"
	LabelModule     = "mesh.module"
	LabelID         = "mesh.id"
	LabelSpec       = "mesh.spec"
	LabelEpoch      = "mesh.epoch"
	LabelGeneration = "mesh.generation"
	// LabelRestart is the declared restart policy, which a version set aside gives up.
	LabelRestart = "mesh.restart"
)

// A version that is kept until its successor has proved itself, and one that is made and not
// yet put in its place, have names of their own.
const (
	previousSuffix = ".previous"
	nextSuffix     = ".next"
)

// ErrNotFound is in the chain of errors about a container, image or network that is not there.
var ErrNotFound = errors.New("not found")

// Engine is a connection to one engine. Safe for concurrent use.
type Engine struct {
	cli *client.Client
}

// Container is one container as the engine has it.
type Container struct {
	ID        string
	Name      string
	Image     string // the image's id
	Reference string // what it was made from
	Labels    map[string]string
	Status    string // created, running, restarting, exited, paused, dead
	ExitCode  int
	Error     string // why the engine could not start it
	Restarts  int
	Started   time.Time
	Previous  bool // kept aside while its successor proves itself
	Next      bool // made, and not yet put in its place
}

// Resource is the id "<module>/<id>" of the resource the container is.
func (c Container) Resource() string { return c.Labels[LabelModule] + "/" + c.Labels[LabelID] }

// Running says that the container's process runs now; a restart back-off is not running.
func (c Container) Running() bool { return c.Status == "running" }

// Name is a container's name. Node, module and id have no dots, so it is unambiguous.
func Name(node, resource string) string {
	return "mesh." + node + "." + strings.ReplaceAll(resource, "/", ".")
}

// PreviousName is where the previous version of a container waits.
func PreviousName(node, resource string) string { return Name(node, resource) + previousSuffix }

// NextName is where a container waits that was made and not yet put in its place.
func NextName(node, resource string) string { return Name(node, resource) + nextSuffix }

// Open prepares a connection to the engine at address ("unix:///run/docker.sock"). Nothing
// is sent until the first call, so an engine that is down is not an error here.
func Open(address string) (*Engine, error) {
	cli, err := client.New(client.WithHost(address))
	if err != nil {
		return nil, fmt.Errorf("open engine %s: %w", address, err)
	}
	return &Engine{cli: cli}, nil
}

// Close ends the connections.
func (e *Engine) Close() error { return e.cli.Close() }

// Ping says whether the engine answers.
func (e *Engine) Ping(ctx context.Context) error {
	_, err := e.cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err != nil {
		return fmt.Errorf("reach container engine: %w", err)
	}
	return nil
}

// List gives the containers that carry all of the labels, stopped ones too.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]Container, error) {
	filters := client.Filters{}
	for key, value := range labels {
		filters = filters.Add("label", key+"="+value)
	}
	found, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var containers []Container
	for _, item := range found.Items {
		c, err := e.Inspect(ctx, item.ID)
		if errors.Is(err, ErrNotFound) {
			continue // went between the two calls
		}
		if err != nil {
			return nil, err
		}
		containers = append(containers, c)
	}
	slices.SortFunc(containers, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	return containers, nil
}

// Inspect gives one container by id or name.
func (e *Engine) Inspect(ctx context.Context, id string) (Container, error) {
	found, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return Container{}, failed("inspect container", id, err)
	}
	in := found.Container
	c := Container{
		ID: in.ID, Name: strings.TrimPrefix(in.Name, "/"), Image: in.Image, Restarts: in.RestartCount,
	}
	if in.Config != nil {
		c.Labels = in.Config.Labels
		c.Reference = in.Config.Image
	}
	// By the whole name: a resource may itself be called "next".
	node := c.Labels[LabelNode]
	c.Previous, c.Next = c.Name == PreviousName(node, c.Resource()), c.Name == NextName(node, c.Resource())
	if in.State != nil {
		c.Status, c.ExitCode, c.Error = string(in.State.Status), in.State.ExitCode, in.State.Error
		c.Started, _ = time.Parse(time.RFC3339Nano, in.State.StartedAt)
	}
	return c, nil
}

// Start starts a container; one that runs already is no error.
func (e *Engine) Start(ctx context.Context, id string) error {
	_, err := e.cli.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return failed("start container", id, err)
}

// Stop stops a container the way its definition says.
func (e *Engine) Stop(ctx context.Context, id string) error {
	_, err := e.cli.ContainerStop(ctx, id, client.ContainerStopOptions{})
	return failed("stop container", id, err)
}

// Restart stops and starts a container; its bind mounts are looked up anew.
func (e *Engine) Restart(ctx context.Context, id string) error {
	_, err := e.cli.ContainerRestart(ctx, id, client.ContainerRestartOptions{})
	return failed("restart container", id, err)
}

// Remove removes a container, running or not; its anonymous volumes stay. One that is gone
// already is no error.
func (e *Engine) Remove(ctx context.Context, id string) error {
	_, err := e.cli.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	if cerrdefs.IsConflict(err) { // its removal is under way, from an earlier life of the host
		err = e.awaitGone(ctx, id, err)
	}
	if err = failed("remove container", id, err); errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// awaitGone waits a while for a container to be gone; err is what to say when it is not.
func (e *Engine) awaitGone(ctx context.Context, id string, err error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		_, inspected := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if cerrdefs.IsNotFound(inspected) {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Rename gives a container another name.
func (e *Engine) Rename(ctx context.Context, id, name string) error {
	_, err := e.cli.ContainerRename(ctx, id, client.ContainerRenameOptions{NewName: name})
	return failed("rename container", id, err)
}

// SetRestart changes the restart policy in place, without touching the process.
func (e *Engine) SetRestart(ctx context.Context, id, policy string) error {
	_, err := e.cli.ContainerUpdate(ctx, id, client.ContainerUpdateOptions{
		RestartPolicy: &container.RestartPolicy{Name: container.RestartPolicyMode(policy)},
	})
	return failed("update container", id, err)
}

// HasImage says whether the engine has the image, and its id.
func (e *Engine) HasImage(ctx context.Context, reference string) (string, bool) {
	image, err := e.cli.ImageInspect(ctx, reference)
	return image.ID, err == nil
}

// Pull fetches an image by a reference with a digest.
func (e *Engine) Pull(ctx context.Context, reference string) error {
	response, err := e.cli.ImagePull(ctx, reference, client.ImagePullOptions{})
	if err != nil {
		return failed("pull", reference, err)
	}
	defer response.Close()
	return failed("pull", reference, response.Wait(ctx))
}

// RemoveImage drops a reference, and the image's data when nothing else uses it.
func (e *Engine) RemoveImage(ctx context.Context, reference string) error {
	_, err := e.cli.ImageRemove(ctx, reference, client.ImageRemoveOptions{PruneChildren: true})
	return failed("remove image", reference, err)
}

// Exec runs a command in a container and gives its exit code.
func (e *Engine) Exec(ctx context.Context, id string, command []string) (int, error) {
	created, err := e.cli.ExecCreate(ctx, id, client.ExecCreateOptions{Cmd: command, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return 0, failed("exec in container", id, err)
	}
	attached, err := e.cli.ExecAttach(ctx, created.ID, client.ExecAttachOptions{})
	if err != nil {
		return 0, failed("exec in container", id, err)
	}
	stop := context.AfterFunc(ctx, attached.Close)
	_, _ = io.Copy(io.Discard, attached.Reader)
	stop()
	attached.Close()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	result, err := e.cli.ExecInspect(ctx, created.ID, client.ExecInspectOptions{})
	if err != nil {
		return 0, failed("exec in container", id, err)
	}
	return result.ExitCode, nil
}

// Tail gives the last lines a container wrote, at most 4 KiB.
func (e *Engine) Tail(ctx context.Context, id string, lines int) string {
	logs, err := e.cli.ContainerLogs(ctx, id, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Tail: strconv.Itoa(lines),
	})
	if err != nil {
		return ""
	}
	defer logs.Close()
	var text strings.Builder
	_, _ = stdcopy.StdCopy(&text, &text, io.LimitReader(logs, 64<<10))
	out := strings.TrimSpace(text.String())
	return out[max(0, len(out)-4<<10):]
}

// Events calls changed whenever a container with the labels starts, dies or goes, until the
// context ends or the engine hangs up.
func (e *Engine) Events(ctx context.Context, labels map[string]string, changed func()) error {
	filters := client.Filters{}.Add("type", "container").Add("event", "die", "start", "destroy", "oom")
	for key, value := range labels {
		filters = filters.Add("label", key+"="+value)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := e.cli.Events(ctx, client.EventsListOptions{Filters: filters})
	for {
		select {
		case <-stream.Messages:
			changed()
		case err := <-stream.Err:
			return fmt.Errorf("follow engine events: %w", err)
		}
	}
}

func failed(verb, subject string, err error) error {
	switch {
	case err == nil:
		return nil
	case cerrdefs.IsNotFound(err):
		return fmt.Errorf("%s %s: %w: %w", verb, subject, ErrNotFound, err)
	}
	return fmt.Errorf("%s %s: %w", verb, subject, err)
}
