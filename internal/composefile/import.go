package composefile

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/mesh-control/mesh/schema"
)

// Note is something of a Compose file that a person has to look at: an attribute that was
// not carried over, or one that means something else in a mesh.
type Note struct {
	Where   string `json:"where"` // path in the file, such as services.web.cap_drop
	Message string `json:"message"`
}

// Import makes a module of a Compose file. The artifacts' paths are those below the file's
// own directory, which becomes the module's.
func Import(ctx context.Context, name, file string) (*schema.Module, []Note, error) {
	project, vars, err := load(ctx, name, file)
	if err != nil {
		return nil, nil, err
	}
	c := &converter{
		name: name, project: project, directories: map[string]bool{},
		module: &schema.Module{Name: name, Description: "From " + filepath.Base(file), Artifacts: map[string]schema.Artifact{}, OwnSecrets: map[string]schema.OwnSecret{}},
	}
	for _, service := range slices.Sorted(maps.Keys(project.Services)) {
		c.service(project.Services[service])
	}
	c.tellRest()
	for _, missing := range vars.missing {
		c.note("${"+missing+"}", "it has no value in .env; nothing stands in its place")
	}
	for _, used := range vars.used {
		c.note("${"+used+"}", "its value in .env is written out; a value that differs between nodes is a setting, a secret one an own-secret")
	}
	return c.module, c.notes, nil
}

// converter is the module so far.
type converter struct {
	name        string
	project     *types.Project
	module      *schema.Module
	notes       []Note
	directories map[string]bool // machine paths that have a resource
}

func (c *converter) note(where, format string, args ...any) {
	c.notes = append(c.notes, Note{where, fmt.Sprintf(format, args...)})
}

// carried are a service's attributes that the functions below look at. What else stands in
// the file is told by tellRest.
var carried = []string{
	"image", "build", "command", "entrypoint", "environment", "env_file", "volumes", "ports", "networks", "network_mode", "depends_on", "devices",
	"deploy", "mem_limit", "cpus", "pids_limit", "user", "cap_add", "read_only", "restart", "stop_signal", "stop_grace_period", "labels",
	"healthcheck", "secrets", "profiles",
}

// harmless attributes say nothing about what runs on a node.
var harmless = []string{"container_name", "expose", "pull_policy", "attach", "develop", "x-"}

// tellRest names every attribute that nothing was made of.
func (c *converter) tellRest() {
	for _, service := range slices.Sorted(maps.Keys(c.project.Services)) {
		text, err := json.Marshal(c.project.Services[service])
		if err != nil {
			continue // a model of its own library's making
		}
		var attributes map[string]json.RawMessage
		if json.Unmarshal(text, &attributes) != nil {
			continue
		}
		for _, attribute := range slices.Sorted(maps.Keys(attributes)) {
			if !slices.Contains(carried, attribute) && !slices.Contains(harmless, attribute) && string(attributes[attribute]) != "null" {
				c.note("services."+service+"."+attribute, "not carried over: a module has nothing like it")
			}
		}
	}
	for _, config := range slices.Sorted(maps.Keys(c.project.Configs)) {
		c.note("configs."+config, "not carried over: put the file into a directory of its own, an archive artifact, and mount that")
	}
	for _, network := range slices.Sorted(maps.Keys(c.project.Networks)) {
		if n := c.project.Networks[network]; n.Driver != "" || len(n.DriverOpts) > 0 || len(n.Ipam.Config) > 0 || bool(n.External) || n.Internal {
			c.note("networks."+network, "it becomes a plain network between this module's containers on a node; its options are not carried over")
		}
	}
	for _, volume := range slices.Sorted(maps.Keys(c.project.Volumes)) {
		if v := c.project.Volumes[volume]; v.Driver != "" || len(v.DriverOpts) > 0 || bool(v.External) {
			c.note("volumes."+volume, "it becomes a directory on the node, %s; driver, options and existing data are not carried over", c.volumePath(volume))
		}
	}
}

func (c *converter) volumePath(volume string) string {
	return "/var/lib/mesh/" + c.name + "/" + slug(volume)
}

// literal keeps "${" in a text from being taken for a reference, as "$$" did in the file.
func literal(text string) string { return strings.ReplaceAll(text, "${", "$${") }

func literals(texts []string) []string {
	var out []string
	for _, text := range texts {
		out = append(out, literal(text))
	}
	return out
}

// slug makes a name that resources and artifacts can have.
func slug(name string) string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	if text = strings.Trim(text, "-"); text == "" || text[0] < 'a' {
		text = "x" + text
	}
	return text
}

func (c *converter) service(s types.ServiceConfig) {
	where := "services." + s.Name
	id := slug(s.Name)
	r := schema.Resource{ID: id, Type: schema.TypeContainer, Artifact: id, Command: literals(s.Command), Entrypoint: literals(s.Entrypoint)}
	if !c.artifact(where, id, s) {
		return
	}
	r.User, r.Capabilities, r.ReadOnly, r.StopSignal = s.User, s.CapAdd, s.ReadOnly, s.StopSignal
	for label, value := range s.Labels {
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[label] = literal(value)
	}
	if len(s.Profiles) > 0 {
		c.note(where+".profiles", "a module has no profiles: it runs with the rest. Make a module of its own of what does not")
	}
	if s.StopGracePeriod != nil {
		r.StopTimeout = seconds(*s.StopGracePeriod)
	}
	c.restart(where, &r, s)
	c.environment(where, &r, s)
	c.networks(where, &r, s)
	c.ports(where, &r, s)
	c.volumes(where, &r, s)
	c.secrets(where, &r, s)
	c.limits(where, &r, s)
	c.health(where, &r, s)
	for _, device := range s.Devices {
		if device.Source != device.Target && device.Target != "" {
			c.note(where+".devices", "%s cannot have another name inside the container (%s)", device.Source, device.Target)
		}
		r.Devices = append(r.Devices, device.Source)
	}
	for _, other := range slices.Sorted(maps.Keys(s.DependsOn)) {
		if s.DependsOn[other].Condition == types.ServiceConditionCompletedSuccessfully {
			c.note(where+".depends_on."+other, "a container that has to end first is not waited for; make it a step of the image's entrypoint")
		}
		if _, ok := c.project.Services[other]; ok {
			r.After = append(r.After, slug(other))
		}
	}
	slices.Sort(r.After)
	r.After = slices.Compact(r.After)
	c.module.Resources = append(c.module.Resources, r)
}

// artifact is where a service's image comes from.
func (c *converter) artifact(where, id string, s types.ServiceConfig) bool {
	if s.Build != nil {
		return c.build(where+".build", id, s.Build)
	}
	if s.Image == "" {
		c.note(where, "not carried over: it has neither image nor build")
		return false
	}
	reference := canonical(s.Image)
	if reference != s.Image && strings.HasSuffix(reference, ":latest") {
		c.note(where+".image", "%s has no tag; :latest is written, and whatever it means when the module is built is kept. A version is better", s.Image)
	}
	c.module.Artifacts[id] = schema.Artifact{Kind: schema.KindUpstream, Reference: reference}
	return true
}

func (c *converter) build(where, id string, b *types.BuildConfig) bool {
	context, ok := c.inside(b.Context)
	if !ok {
		c.note(where+".context", "not carried over: %s is not inside the module's directory", b.Context)
		return false
	}
	if b.DockerfileInline != "" {
		c.note(where+".dockerfile_inline", "not carried over: write it to a Dockerfile in %s", context)
		return false
	}
	dockerfile := b.Dockerfile
	if dockerfile == "" {
		dockerfile = "Dockerfile"
	}
	if !filepath.IsAbs(dockerfile) {
		dockerfile = filepath.Join(b.Context, dockerfile)
	}
	inner, ok := c.inside(dockerfile)
	if !ok {
		c.note(where+".dockerfile", "not carried over: %s is not inside the module's directory", dockerfile)
		return false
	}
	a := schema.Artifact{Kind: schema.KindImage, Dockerfile: inner, Context: context}
	for name, value := range b.Args {
		if value == nil {
			c.note(where+".args."+name, "it has no value; builders pass nothing of their environment on")
			continue
		}
		if a.Args == nil {
			a.Args = map[string]string{}
		}
		a.Args[name] = *value
	}
	if b.Target != "" {
		c.note(where+".target", "not carried over: the last stage of the Dockerfile is built")
	}
	if len(b.Secrets)+len(b.SSH)+len(b.AdditionalContexts) > 0 {
		c.note(where, "secrets, ssh and additional_contexts are not carried over: an image is built from the repository alone, without network")
	}
	c.module.Artifacts[id] = a
	return true
}

// inside makes an absolute path one below the module's directory.
func (c *converter) inside(path string) (string, bool) {
	relative, err := filepath.Rel(c.project.WorkingDir, path)
	if err != nil || !filepath.IsLocal(relative) {
		return "", false
	}
	return filepath.ToSlash(relative), true
}

// directory makes a resource for a directory on the node, once.
func (c *converter) directory(id, path, mode string) {
	if !c.directories[path] {
		c.directories[path] = true
		c.module.Resources = append(c.module.Resources, schema.Resource{ID: id, Type: schema.TypeDirectory, Path: path, Mode: mode})
	}
}

// isDirectory says whether a path of the machine importing is one.
func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
