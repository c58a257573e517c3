package composefile

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/distribution/reference"

	"github.com/mesh-control/mesh/schema"
)

// canonical writes an image's reference out, with registry and tag.
func canonical(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return reference.TagNameOnly(named).String()
}

func seconds(d types.Duration) int {
	return int(time.Duration(d).Round(time.Second) / time.Second)
}

// restart: a container of a mesh is always started again unless the file says otherwise, also
// where Compose, left to itself, would not.
func (c *converter) restart(where string, r *schema.Resource, s types.ServiceConfig) {
	policy, limit, _ := strings.Cut(s.Restart, ":")
	switch policy {
	case types.RestartPolicyOnFailure:
		r.Restart = "on-failure"
		if limit != "" {
			c.note(where+".restart", "the number of attempts is not carried over: it is tried again with growing pauses")
		}
	case types.RestartPolicyNo:
		r.Restart = "no"
	}
}

// environment carries the values that stand in the file. An env_file becomes a secret that is
// given to the mesh, because nobody can tell what is in it.
func (c *converter) environment(where string, r *schema.Resource, s types.ServiceConfig) {
	for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
		value := s.Environment[name]
		if value == nil {
			c.note(where+".environment."+name, "not carried over: its value is the shell's. Give it as an own-secret in an env-file, or write it")
			continue
		}
		if r.Env == nil {
			r.Env = map[string]string{}
		}
		r.Env[name] = literal(*value)
	}
	for i, file := range s.EnvFiles {
		name := r.ID + "-env"
		if i > 0 {
			name += "-" + strconv.Itoa(i+1)
		}
		at := c.secretsDirectory() + "/" + name + ".env"
		c.module.OwnSecrets[name] = schema.OwnSecret{Path: at, Given: true}
		r.EnvFiles = append(r.EnvFiles, at)
		c.note(where+".env_file", "it becomes a secret: mesh secret give %s %s --node N --file %s", c.name, name, path.Base(file.Path))
	}
}

func (c *converter) secretsDirectory() string { return "/etc/mesh/" + c.name + "/secrets" }

// networks: containers of one module that find each other by name share a network.
func (c *converter) networks(where string, r *schema.Resource, s types.ServiceConfig) {
	switch {
	case s.NetworkMode == "host":
		r.Networks = []string{"host"}
		return
	case s.NetworkMode != "" && s.NetworkMode != "bridge":
		c.note(where+".network_mode", "%s is not carried over", s.NetworkMode)
	}
	if len(c.project.Services) < 2 && len(s.Networks) < 2 {
		return
	}
	for _, network := range slices.Sorted(maps.Keys(s.Networks)) {
		if options := s.Networks[network]; options != nil && len(options.Aliases) > 0 {
			c.note(where+".networks."+network+".aliases", "not carried over: a container answers to the name %s", r.ID)
		}
		name := c.name
		if network != "default" {
			name += "-" + slug(network)
		}
		r.Networks = append(r.Networks, name)
	}
}

func (c *converter) ports(where string, r *schema.Resource, s types.ServiceConfig) {
	for _, p := range s.Ports {
		port := schema.Port{Container: int(p.Target), Address: p.HostIP}
		if p.Protocol == "udp" {
			port.Protocol = "udp"
		}
		host, err := strconv.Atoi(p.Published)
		if err != nil {
			host = port.Container
			c.note(where+".ports", "%d is published as %q there; here it is always %d", p.Target, p.Published, host)
		}
		if host != port.Container {
			port.Host = host
		}
		r.Ports = append(r.Ports, port)
		if claim := (schema.Claim{Port: host}); !slices.Contains(c.module.Claims, claim) {
			c.module.Claims = append(c.module.Claims, claim)
		}
	}
}

func (c *converter) volumes(where string, r *schema.Resource, s types.ServiceConfig) {
	for _, v := range s.Volumes {
		mount := schema.Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly}
		switch {
		case v.Type == types.VolumeTypeVolume && v.Source == "":
			c.note(where+".volumes", "%s is a nameless volume: the container keeps it as long as it lives", v.Target)
			continue
		case v.Type == types.VolumeTypeVolume:
			mount.Source = c.volumePath(v.Source)
			c.directory("volume-"+slug(v.Source), mount.Source, "")
			r.After = append(r.After, "volume-"+slug(v.Source))
		case v.Type == types.VolumeTypeBind:
			inner, ok := c.inside(v.Source)
			switch {
			case ok && !isDirectory(v.Source):
				c.note(where+".volumes", "%s is not carried over: a single file cannot be mounted, because it is replaced as a whole when it changes. Put it into a directory of its own", inner)
				continue
			case ok:
				mount.Source, mount.ReadOnly = c.files(inner), true
				r.After = append(r.After, "files-"+slug(inner))
				if !v.ReadOnly {
					c.note(where+".volumes", "%s comes with each build and is mounted read-only; what the container writes needs a volume", inner)
				}
			default:
				c.note(where+".volumes", "%s has to be on the node: the mesh does not bring it", v.Source)
			}
		default:
			c.note(where+".volumes", "%s at %s is not carried over", v.Type, v.Target)
			continue
		}
		r.Mounts = append(r.Mounts, mount)
	}
}

// files makes an archive of a directory beside the Compose file, once, and gives where it
// lies on the node.
func (c *converter) files(inner string) string {
	id := "files-" + slug(inner)
	at := "/var/lib/mesh/" + c.name + "/" + id
	if !c.directories[at] {
		c.directories[at] = true
		c.module.Artifacts[id] = schema.Artifact{Kind: schema.KindArchive, Path: inner}
		c.module.Resources = append(c.module.Resources, schema.Resource{ID: id, Type: schema.TypeArchive, Artifact: id, Path: at})
	}
	return at
}

// secrets become secrets that are given, in one directory that is mounted where Compose puts
// them.
func (c *converter) secrets(where string, r *schema.Resource, s types.ServiceConfig) {
	const usual = "/run/secrets/"
	mounted := false
	for _, secret := range s.Secrets {
		target := secret.Target
		if target == "" {
			target = secret.Source
		}
		target = strings.TrimPrefix(target, usual)
		if strings.Contains(target, "/") {
			c.note(where+".secrets."+secret.Source, "%s is not carried over: secrets are files below %s", target, usual)
			continue
		}
		name := slug(secret.Source)
		at := c.secretsDirectory() + "/" + r.ID + "/" + target
		if _, taken := c.module.OwnSecrets[name]; taken {
			name = r.ID + "-" + name
		}
		c.module.OwnSecrets[name] = schema.OwnSecret{Path: at, Given: true}
		c.note("secrets."+secret.Source, "give it to the mesh: mesh secret give %s %s --node N", c.name, name)
		if !mounted {
			mounted = true
			r.Mounts = append(r.Mounts, schema.Mount{Source: c.secretsDirectory() + "/" + r.ID, Target: strings.TrimSuffix(usual, "/"), ReadOnly: true})
		}
	}
}

func (c *converter) limits(where string, r *schema.Resource, s types.ServiceConfig) {
	limits := schema.Limits{Memory: int64(s.MemLimit), CPUs: float64(s.CPUS), PIDs: s.PidsLimit}
	if d := s.Deploy; d != nil {
		if l := d.Resources.Limits; l != nil {
			limits.Memory, limits.PIDs = max(limits.Memory, int64(l.MemoryBytes)), max(limits.PIDs, l.Pids)
			limits.CPUs = max(limits.CPUs, float64(l.NanoCPUs))
		}
		if d.Resources.Reservations != nil {
			c.note(where+".deploy.resources.reservations", "not carried over: a device or memory to be reserved is a claim of the module")
		}
		if d.Replicas != nil && *d.Replicas != 1 {
			c.note(where+".deploy.replicas", "not carried over: assign the module to as many nodes")
		}
	}
	if limits != (schema.Limits{}) {
		r.Limits = &limits
	}
}

func (c *converter) health(where string, r *schema.Resource, s types.ServiceConfig) {
	h := s.HealthCheck
	if h == nil || h.Disable || len(h.Test) == 0 || h.Test[0] == "NONE" {
		return
	}
	check := &schema.Health{}
	switch h.Test[0] {
	case "CMD":
		check.Exec = literals(h.Test[1:])
	case "CMD-SHELL":
		check.Exec = []string{"/bin/sh", "-c", literal(strings.Join(h.Test[1:], " "))}
	default:
		check.Exec = literals(h.Test)
	}
	if h.Interval != nil {
		check.Interval = seconds(*h.Interval)
	}
	if h.StartPeriod != nil {
		check.Window = seconds(*h.StartPeriod)
	}
	if h.Timeout != nil || h.Retries != nil || h.StartInterval != nil {
		c.note(where+".healthcheck", "timeout, retries and start_interval are not carried over: what fails is failing, until it answers again")
	}
	r.Health = check
}
