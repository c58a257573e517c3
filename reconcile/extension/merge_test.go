package extension

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/schema"
)

func raw(text string) json.RawMessage { return json.RawMessage(text) }

func texts(list []json.RawMessage) string {
	var all []string
	for _, r := range list {
		all = append(all, string(r))
	}
	return strings.Join(all, " ")
}

func TestS2_186_WhatIsLeftOutErasesNothing(t *testing.T) {
	t.Parallel()
	full := Section{
		Modules:   map[string]string{"web": "sha256:1"},
		Resources: []schema.Resource{{ID: "web/site"}},
		Host: schema.HostSection{
			Config:    map[string]json.RawMessage{"a": raw("1")},
			Telemetry: map[string]json.RawMessage{"b": raw("2")},
			Access:    map[string]json.RawMessage{"c": raw("3"), accessKeys: raw(`["k"]`)},
		},
		Devices:   schema.DeviceSection{Assignments: []json.RawMessage{raw(`{"allocationId":"d"}`)}},
		Instances: []json.RawMessage{raw(`{"id":"i"}`)},
		Site:      schema.SiteSection{CacheImages: []string{"image"}},
		Daemon:    raw(`{"version":"1"}`),
	}
	want, _ := json.Marshal(Merge(full))
	for _, sections := range [][]Section{{full, {}}, {{}, full}} {
		got, _ := json.Marshal(Merge(sections...))
		if string(got) != string(want) {
			t.Errorf("merged with nothing:\n%s\nwant\n%s", got, want)
		}
	}
}

func TestS2_188_MapsMergeKeyByKey(t *testing.T) {
	t.Parallel()
	section := func(own, shared string) Section {
		m := map[string]json.RawMessage{own: raw(`"own"`), "shared": raw(shared)}
		return Section{Host: schema.HostSection{Config: m, Telemetry: maps.Clone(m), Access: maps.Clone(m)}}
	}
	got := Merge(section("first", `1`), section("second", `2`))
	for name, m := range map[string]map[string]json.RawMessage{"config": got.Host.Config, "telemetry": got.Host.Telemetry, "access": got.Host.Access} {
		if len(m) != 3 || string(m["shared"]) != `2` || m["first"] == nil || m["second"] == nil {
			t.Errorf("%s is %v", name, m)
		}
	}
}

func TestS2_189_SSHKeysAreAUnion(t *testing.T) {
	t.Parallel()
	section := func(keys string) Section {
		return Section{Host: schema.HostSection{Access: map[string]json.RawMessage{accessKeys: raw(keys)}}}
	}
	if got := string(Merge(section(`["a","b"]`), section(`["b","c"]`)).Host.Access[accessKeys]); got != `["a","b","c"]` {
		t.Errorf("united to %s", got)
	}
}

func TestS2_190_191_ListsMergeByID(t *testing.T) {
	t.Parallel()
	for field, pick := range map[string]func(Section) []json.RawMessage{
		"allocationId": func(s Section) []json.RawMessage { return s.Devices.Assignments },
		"id":           func(s Section) []json.RawMessage { return s.Instances },
	} {
		entry := func(id, value string) json.RawMessage { return raw(`{"` + field + `":"` + id + `","v":` + value + `}`) }
		section := func(entries ...json.RawMessage) Section {
			return Section{Devices: schema.DeviceSection{Assignments: entries}, Instances: entries}
		}
		got := pick(Merge(section(entry("a", "1"), entry("b", "1")), section(entry("b", "2"), entry("c", "2"))))
		want := []json.RawMessage{entry("a", "1"), entry("b", "2"), entry("c", "2")}
		if texts(got) != texts(want) {
			t.Errorf("by %s: %s, want %s", field, texts(got), texts(want))
		}
	}
}

func TestS2_192_SiteIsDecidedByTheLastThatGivesAField(t *testing.T) {
	t.Parallel()
	images := func(names ...string) Section { return Section{Site: schema.SiteSection{CacheImages: names}} }
	got := Merge(images("a", "b"), images("c"), Section{}).Site.CacheImages
	if !slices.Equal(got, []string{"c"}) {
		t.Errorf("cacheImages are %v", got)
	}
}

func TestS2_195_DaemonIsTakenWhole(t *testing.T) {
	t.Parallel()
	got := Merge(Section{Daemon: raw(`{"version":"1","channel":"x"}`)}, Section{Daemon: raw(`{"version":"2"}`)}, Section{})
	if string(got.Daemon) != `{"version":"2"}` {
		t.Errorf("daemon is %s", got.Daemon)
	}
}

func TestMergeChangesNoneOfItsArguments(t *testing.T) {
	t.Parallel()
	first := Section{
		Modules: map[string]string{"a": "1"}, Instances: []json.RawMessage{raw(`{"id":"a"}`)},
		Resources: []schema.Resource{{ID: "x", Path: "1"}},
		Host:      schema.HostSection{Access: map[string]json.RawMessage{accessKeys: raw(`["a"]`)}},
	}
	before, _ := json.Marshal(first)
	Merge(first, Section{
		Modules: map[string]string{"a": "2"}, Instances: []json.RawMessage{raw(`{"id":"a","v":2}`)},
		Resources: []schema.Resource{{ID: "x", Path: "2"}},
		Host:      schema.HostSection{Access: map[string]json.RawMessage{accessKeys: raw(`["b"]`)}},
	})
	if after, _ := json.Marshal(first); string(after) != string(before) {
		t.Errorf("%s became %s", before, after)
	}
}
