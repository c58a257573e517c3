package compose

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// What the mesh lands for a module has ids of its own: "<module>/secret.<name>",
// "<module>/credential.<provision>" and "<module>/grant.<provision>.<consumer>.<node>". An id
// in module.json has no dot, so they never meet.
const (
	secretPrefix     = "/secret."
	credentialPrefix = "/credential."
	grantPrefix      = "/grant."
)

// secretMode: read by root, from the first byte, and by whom root hands it to.
const secretMode = "0400"

// sealed makes the files that carry a module's secrets, credentials and grants.
func (c *composer) sealed(placed Placed, document schema.Manifest) ([]schema.Resource, []api.Blocked) {
	name := placed.Assignment.Module
	var files []schema.Resource
	var blocked []api.Blocked
	for _, secret := range slices.Sorted(maps.Keys(document.OwnSecrets)) {
		file, problem := c.ownSecret(name, secret, document.OwnSecrets[secret])
		if problem != nil {
			blocked = append(blocked, *problem)
			continue
		}
		files = append(files, file)
	}
	for _, provision := range slices.Sorted(maps.Keys(document.Secrets)) {
		binding, bound := placed.Bindings[provision]
		if !bound {
			continue // already refused as unresolved, or optional
		}
		file, problem := c.credential(name, binding, document.Secrets[provision])
		if problem != nil {
			blocked = append(blocked, *problem)
			continue
		}
		files = append(files, file)
	}
	return append(files, c.grants(name, document)...), blocked
}

func (c *composer) ownSecret(module, name string, declared schema.OwnSecret) (schema.Resource, *api.Blocked) {
	remedy := fmt.Sprintf("mesh secret give %s %s --node %s", module, name, c.node.Name)
	if module == "builder" && (name == "broker" || name == "key") {
		remedy = "mesh builder issue --node " + c.node.Name
	}
	secret, ok := c.secrets[[2]string{module, name}]
	if ok && declared.Given && !secret.Given {
		ok = false // a generated value never stands for one that has to come from outside
	}
	switch {
	case !ok && declared.Given:
		return schema.Resource{}, &api.Blocked{
			Module: module, Reason: SecretNotGiven, Remedy: remedy,
			Message: fmt.Sprintf("secret %q was declared and never given", name),
		}
	case !ok:
		return schema.Resource{}, &api.Blocked{
			Module: module, Reason: SecretNotMade,
			Message: fmt.Sprintf("secret %q was declared and is not made yet", name),
			Remedy:  "the controller makes it by itself; if this stays, mesh doctor",
		}
	case secret.Sealed.Recipient != c.node.Fingerprint:
		if !secret.Given {
			remedy = "the controller makes it anew by itself; if this stays, mesh doctor"
		}
		return schema.Resource{}, &api.Blocked{
			Module: module, Reason: SecretNotUsable, Remedy: remedy,
			Message: fmt.Sprintf("secret %q is sealed to a key that node %s no longer has", name, c.node.Name),
		}
	}
	return sealedFile(module+secretPrefix+name, declared.Path, secret.Sealed), nil
}

func (c *composer) credential(module string, binding Binding, landing string) (schema.Resource, *api.Blocked) {
	id := module + credentialPrefix + binding.Provision
	if binding.Grants == "" && !binding.BuiltIn() {
		data, err := schema.Canonical(schema.Credential{Host: binding.Host, Port: binding.Port})
		if err != nil {
			return schema.Resource{}, &api.Blocked{Module: module, Reason: SecretNotMade, Message: err.Error()}
		}
		content := string(data)
		return schema.Resource{ID: id, Type: schema.TypeFile, Path: landing, Mode: secretMode, Content: &content}, nil
	}
	credential, ok := c.credentials[[2]string{module, binding.Provision}]
	if !ok || credential.Provider != binding.Module || credential.ProviderNode != binding.Node {
		return schema.Resource{}, &api.Blocked{
			Module: module, Reason: SecretNotMade,
			Message: fmt.Sprintf("the credential for %s of %s is not made yet", binding.Provision, binding.label()),
			Remedy:  "the controller makes it by itself; if this stays, mesh doctor",
		}
	}
	if credential.Sealed.Recipient != c.node.Fingerprint {
		return schema.Resource{}, &api.Blocked{
			Module: module, Reason: SecretNotUsable,
			Message: fmt.Sprintf("the credential for %s is sealed to a key that node %s no longer has", binding.Provision, c.node.Name),
			Remedy:  "the controller makes it anew by itself; if this stays, mesh doctor",
		}
	}
	return sealedFile(id, landing, credential.Sealed), nil
}

// grants are the files a provider finds in its grants directory, one per consumer.
func (c *composer) grants(module string, document schema.Manifest) []schema.Resource {
	directories := map[string]string{}
	for _, provision := range document.Provides {
		directories[provision.Name] = provision.Grants
	}
	var files []schema.Resource
	for _, grant := range c.input.Grants {
		directory := directories[grant.Provision]
		if grant.Provider != module || directory == "" || grant.Sealed.Recipient != c.node.Fingerprint {
			continue
		}
		id := module + grantPrefix + strings.Join([]string{grant.Provision, grant.Consumer, grant.ConsumerNode}, ".")
		file := path.Join(directory, grant.Consumer+"."+grant.ConsumerNode+".json")
		files = append(files, sealedFile(id, file, grant.Sealed))
	}
	return files
}

func sealedFile(id, landing string, sealed schema.Sealed) schema.Resource {
	return schema.Resource{ID: id, Type: schema.TypeFile, Path: landing, Mode: secretMode, Sealed: &sealed}
}
