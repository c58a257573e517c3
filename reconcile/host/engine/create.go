package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/mesh-control/mesh/schema"
)

// Definition is a container to be made: the declared resource with every path and image
// already turned into what this machine calls it.
type Definition struct {
	Name     string
	Image    string // reference the engine pulled
	Resource schema.Resource
	Env      []string // of env-files and env, in order
	Labels   map[string]string
	Networks map[string]string // declared name to the engine's
}

// The engine keeps this much of what a container prints, so that no log fills a disk.
var logLimits = map[string]string{"max-size": "10m", "max-file": "3"}

// Create makes a container without starting it.
func (e *Engine) Create(ctx context.Context, d Definition) (string, error) {
	config, err := d.config()
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", d.Name, err)
	}
	host, err := d.host()
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", d.Name, err)
	}
	first, rest, err := e.networks(ctx, d)
	if err != nil {
		return "", err
	}
	options := client.ContainerCreateOptions{Name: d.Name, Config: config, HostConfig: host}
	if first != "" {
		host.NetworkMode = container.NetworkMode(first)
	}
	endpoint := func() *network.EndpointSettings {
		return &network.EndpointSettings{Aliases: []string{d.Labels[LabelID], d.Labels[LabelModule]}}
	}
	if first != "" && first != "host" {
		options.NetworkingConfig = &network.NetworkingConfig{
			EndpointsConfig: map[string]*network.EndpointSettings{first: endpoint()},
		}
	}
	created, err := e.cli.ContainerCreate(ctx, options)
	if err != nil {
		return "", failed("create container", d.Name, err)
	}
	for _, name := range rest {
		_, err := e.cli.NetworkConnect(ctx, name, client.NetworkConnectOptions{Container: created.ID, EndpointConfig: endpoint()})
		if err != nil {
			return "", errors.Join(failed("connect to network", name, err), e.Remove(ctx, created.ID))
		}
	}
	return created.ID, nil
}

func (d Definition) config() (*container.Config, error) {
	r := d.Resource
	exposed := network.PortSet{}
	for _, p := range r.Ports {
		port, err := enginePort(p)
		if err != nil {
			return nil, err
		}
		exposed[port] = struct{}{}
	}
	config := &container.Config{
		Image: d.Image, Cmd: r.Command, Entrypoint: r.Entrypoint, User: r.User, Env: d.Env,
		Labels: d.Labels, ExposedPorts: exposed, StopSignal: r.StopSignal,
	}
	if r.StopTimeout > 0 {
		config.StopTimeout = &r.StopTimeout
	}
	return config, nil
}

func (d Definition) host() (*container.HostConfig, error) {
	r := d.Resource
	host := &container.HostConfig{
		RestartPolicy:  container.RestartPolicy{Name: RestartPolicy(r.Restart)},
		CapAdd:         r.Capabilities,
		ReadonlyRootfs: r.ReadOnly,
		LogConfig:      container.LogConfig{Type: "json-file", Config: logLimits},
		PortBindings:   network.PortMap{},
	}
	for _, m := range r.Mounts {
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	for _, p := range r.Ports {
		port, err := enginePort(p)
		if err != nil {
			return nil, err
		}
		binding := network.PortBinding{HostPort: strconv.Itoa(p.Host)}
		if p.Host == 0 {
			binding.HostPort = strconv.Itoa(p.Container)
		}
		if p.Address != "" {
			if binding.HostIP, err = netip.ParseAddr(p.Address); err != nil {
				return nil, fmt.Errorf("port %d: %w", p.Container, err)
			}
		}
		host.PortBindings[port] = append(host.PortBindings[port], binding)
	}
	for _, device := range r.Devices {
		on, in, found := strings.Cut(device, ":")
		if !found {
			in = on
		}
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: on, PathInContainer: in, CgroupPermissions: "rwm"})
	}
	if r.Limits != nil {
		host.Memory = r.Limits.Memory
		host.NanoCPUs = int64(r.Limits.CPUs * 1e9)
		if r.Limits.PIDs > 0 {
			host.PidsLimit = &r.Limits.PIDs
		}
	}
	return host, nil
}

// RestartPolicy is the engine's word for a declared policy. The engine does the restarting,
// so that containers outlive the host.
func RestartPolicy(declared string) container.RestartPolicyMode {
	switch declared {
	case "no":
		return container.RestartPolicyDisabled
	case "on-failure":
		return container.RestartPolicyOnFailure
	}
	return container.RestartPolicyAlways
}

func enginePort(p schema.Port) (network.Port, error) {
	protocol := network.IPProtocol(p.Protocol)
	if protocol == "" {
		protocol = network.TCP
	}
	port, ok := network.PortFrom(uint16(p.Container), protocol) //nolint:gosec // the schema bounds it
	if !ok {
		return network.Port{}, fmt.Errorf("port %d/%s is none", p.Container, protocol)
	}
	return port, nil
}

// networks makes the declared networks that are missing and gives their names in the engine.
func (e *Engine) networks(ctx context.Context, d Definition) (first string, rest []string, err error) {
	for i, declared := range d.Resource.Networks {
		name := d.Networks[declared]
		if name != "host" {
			if err := e.ensureNetwork(ctx, name, d.Labels); err != nil {
				return "", nil, err
			}
		}
		if i == 0 {
			first = name
		} else {
			rest = append(rest, name)
		}
	}
	return first, rest, nil
}

func (e *Engine) ensureNetwork(ctx context.Context, name string, labels map[string]string) error {
	_, err := e.cli.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err = failed("inspect network", name, err); !errors.Is(err, ErrNotFound) {
		return err
	}
	_, err = e.cli.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Driver: "bridge",
		Labels: map[string]string{LabelMesh: labels[LabelMesh], LabelNode: labels[LabelNode]},
	})
	return failed("create network", name, err)
}

// RemoveNetworks removes the networks that carry all of the labels.
func (e *Engine) RemoveNetworks(ctx context.Context, labels map[string]string) error {
	filters := client.Filters{}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		filters = filters.Add("label", key+"="+labels[key])
	}
	found, err := e.cli.NetworkList(ctx, client.NetworkListOptions{Filters: filters})
	if err != nil {
		return fmt.Errorf("list networks: %w", err)
	}
	for _, item := range found.Items {
		if _, err := e.cli.NetworkRemove(ctx, item.ID, client.NetworkRemoveOptions{}); err != nil {
			return failed("remove network", item.Name, err)
		}
	}
	return nil
}
