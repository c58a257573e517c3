package compose

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

var reference = regexp.MustCompile(`\$\{([^}]*)\}`)

// values is what ${…} can stand for in one module's resources.
type values struct {
	module   string
	document schema.Manifest
	node     Node
	settings map[string]string
	bindings map[string]Binding
}

// lookup answers one reference, or says why it cannot.
func (v values) lookup(name string) (string, *api.Blocked) {
	if value, ok := v.settings[name]; ok {
		return value, nil
	}
	if _, ok := v.document.Settings[name]; ok {
		return "", &api.Blocked{
			Module: v.module, Reason: SettingMissing,
			Message: fmt.Sprintf("setting %q has neither a value nor a default", name),
			Remedy:  fmt.Sprintf("mesh assign %s --node %s --set %s=…", v.module, v.node.Name, name),
		}
	}
	switch name {
	case "node.name":
		return v.node.Name, nil
	case "node.address":
		return v.node.Address, nil
	}
	if parts := strings.Split(name, "."); len(parts) == 3 {
		switch {
		case parts[0] == "provision":
			if value, ok := v.provision(parts[1], parts[2]); ok {
				return value, nil
			}
		case parts[0] == "secret" && parts[2] == "path":
			if secret, ok := v.document.OwnSecrets[parts[1]]; ok {
				return secret.Path, nil
			}
			if path, ok := v.document.Secrets[parts[1]]; ok {
				return path, nil
			}
		}
	}
	return "", &api.Blocked{
		Module: v.module, Reason: UnknownReference,
		Message: fmt.Sprintf("${%s} is no setting, node, provision or secret of the module", name),
		Remedy:  "correct the reference in module.json, build and push",
	}
}

// provision answers host and port of what the module requires or provides. An optional
// requirement that nothing meets is empty.
func (v values) provision(name, field string) (string, bool) {
	host, port, ok := "", 0, false
	if binding, bound := v.bindings[name]; bound {
		host, port, ok = binding.Host, binding.Port, true
	}
	for _, provides := range v.document.Provides {
		if !ok && provides.Name == name {
			host, port, ok = v.node.Address, provides.Port, true
		}
	}
	if !ok {
		for _, requirement := range v.document.Requires {
			if requirement.Name == name && requirement.Optional {
				return "", field == "host" || field == "port"
			}
		}
		return "", false
	}
	switch field {
	case "host":
		return host, true
	case "port":
		return strconv.Itoa(port), true
	}
	return "", false
}

// expand replaces every reference in a resource's string values, keys and the identifying
// fields left alone.
func (v values) expand(resource schema.Resource) (schema.Resource, *api.Blocked) {
	id, kind, after := resource.ID, resource.Type, resource.After
	resource.After = nil
	data, err := json.Marshal(resource)
	if err != nil {
		return resource, v.unreadable(id, err)
	}
	if !reference.Match(data) {
		resource.After = after
		return resource, nil
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return resource, v.unreadable(id, err)
	}
	tree, blocked := v.walk(tree)
	if blocked != nil {
		blocked.Message = fmt.Sprintf("resource %s: %s", id, blocked.Message)
		return resource, blocked
	}
	if data, err = json.Marshal(tree); err != nil {
		return resource, v.unreadable(id, err)
	}
	var out schema.Resource
	if err := json.Unmarshal(data, &out); err != nil {
		return resource, v.unreadable(id, err)
	}
	out.ID, out.Type, out.After = id, kind, after
	return out, nil
}

func (v values) unreadable(id string, err error) *api.Blocked {
	return &api.Blocked{Module: v.module, Reason: UnknownReference, Message: fmt.Sprintf("resource %s: %v", id, err)}
}

func (v values) walk(tree any) (any, *api.Blocked) {
	switch tree := tree.(type) {
	case string:
		return v.text(tree)
	case []any:
		for i := range tree {
			value, blocked := v.walk(tree[i])
			if blocked != nil {
				return nil, blocked
			}
			tree[i] = value
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(tree)) {
			value, blocked := v.walk(tree[key])
			if blocked != nil {
				return nil, blocked
			}
			tree[key] = value
		}
	}
	return tree, nil
}

func (v values) text(text string) (string, *api.Blocked) {
	var first *api.Blocked
	out := reference.ReplaceAllStringFunc(text, func(match string) string {
		value, blocked := v.lookup(match[2 : len(match)-1])
		if blocked != nil && first == nil {
			first = blocked
		}
		return value
	})
	return out, first
}
