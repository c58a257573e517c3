package compose

import (
	"encoding/json"

	"github.com/mesh-control/mesh/schema"
)

// Empty is a declaration of nothing, every collection present.
func Empty(node string) schema.Declaration {
	return schema.Declaration{
		Schema: schema.Version, Node: node,
		Modules: map[string]string{}, Resources: []schema.Resource{},
		Host: schema.HostSection{
			Config:    map[string]json.RawMessage{},
			Telemetry: map[string]json.RawMessage{},
			Access:    map[string]json.RawMessage{},
		},
		Devices:   schema.DeviceSection{Assignments: []json.RawMessage{}},
		Instances: []json.RawMessage{},
		Site:      schema.SiteSection{CacheImages: []string{}},
	}
}
