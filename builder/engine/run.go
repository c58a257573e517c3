package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/mesh-control/mesh/builder/lines"
)

// removal is how long removing what a run made may take once its own context has ended.
const removal = 5 * time.Second

// RunSpec is a container that lives for one command; without one it runs the image's own. In
// holds tars by the directory they are unpacked into before the start; Out, when set, is a path whose tar is handed to
// Take after a successful end.
type RunSpec struct {
	Image     string
	Command   []string
	Env       []string
	Directory string
	Network   string
	Limits    Limits
	Mounts    []Mount
	In        []Input
	Out       string
	Take      func(io.Reader) error
}

// Mount is a named volume at a place in a container.
type Mount struct {
	Volume   string
	Target   string
	ReadOnly bool
}

// Input is a tar and the directory it goes to.
type Input struct {
	Directory string
	Tar       io.Reader
}

// ExitError says that the command ended with a status that is not zero.
type ExitError struct{ Status int64 }

func (e *ExitError) Error() string { return fmt.Sprintf("ended with status %d", e.Status) }

// Run makes the container, runs its command to the end and removes it, whatever happens.
func (e *Engine) Run(ctx context.Context, spec RunSpec, log func(string)) (err error) {
	id, err := e.create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
		defer cancel()
		err = errors.Join(err, e.removeContainer(ctx, id))
	}()
	for _, in := range spec.In {
		if _, err := e.api.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: in.Directory, Content: in.Tar}); err != nil {
			return fmt.Errorf("copy into container: %w", err)
		}
	}
	if err := e.finish(ctx, id, log); err != nil {
		return err
	}
	if spec.Out == "" {
		return nil
	}
	out, err := e.api.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: spec.Out})
	if err != nil {
		return fmt.Errorf("copy out of container: %w", err)
	}
	defer out.Content.Close()
	return spec.Take(out.Content)
}

func (e *Engine) create(ctx context.Context, spec RunSpec) (string, error) {
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(spec.Network),
		CapDrop:     []string{"ALL"},
		SecurityOpt: []string{"no-new-privileges"},
		Resources: container.Resources{
			Memory: spec.Limits.Memory, MemorySwap: spec.Limits.Memory, NanoCPUs: int64(spec.Limits.CPUs * 1e9),
		},
	}
	if spec.Limits.Processes > 0 {
		host.PidsLimit = &spec.Limits.Processes
	}
	for _, m := range spec.Mounts {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeVolume, Source: m.Volume, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	config := &container.Config{
		Image: spec.Image, Env: spec.Env, WorkingDir: spec.Directory, User: "0:0", Labels: map[string]string{Label: e.owner},
	}
	if len(spec.Command) > 0 {
		config.Entrypoint, config.Cmd = spec.Command[:1], spec.Command[1:]
	}
	res, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{Config: config, HostConfig: host})
	if err != nil {
		return "", fmt.Errorf("create container of %s: %w", spec.Image, err)
	}
	return res.ID, nil
}

// finish starts the container, follows its log and waits for its end. The wait is told
// apart from the start by a context: a wait for a start that fails never returns.
func (e *Engine) finish(ctx context.Context, id string, log func(string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := e.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := e.api.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	if err := e.follow(ctx, id, log); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-wait.Error:
		return fmt.Errorf("wait for container: %w", err)
	case res := <-wait.Result:
		if res.Error != nil {
			return errors.New(res.Error.Message)
		}
		if res.StatusCode != 0 {
			return &ExitError{Status: res.StatusCode}
		}
		return nil
	}
}

func (e *Engine) follow(ctx context.Context, id string, log func(string)) error {
	logs, err := e.api.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
	if err != nil {
		return fmt.Errorf("follow container: %w", err)
	}
	defer logs.Close()
	said := &lines.Writer{Say: log}
	defer said.Flush()
	if _, err := stdcopy.StdCopy(said, said, logs); err != nil {
		return fmt.Errorf("follow container: %w", err)
	}
	return nil
}
