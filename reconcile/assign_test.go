package reconcile_test

import (
	"slices"
	"testing"
	"time"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

var fixedClock = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestS1_008_AssigningWithoutTheCapabilityIsRefused(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	m.built(manifest("builder", "1", func(m *schema.Manifest) { m.Capabilities = []string{"container-runtime"} }))
	refused(m, api.AssignmentAdd, api.AssignIn{Module: "builder", Node: "n1"}, api.CodeConflict, "container-runtime", "builder", "n1")
	n.Report(func(r *schema.Report) { r.Capabilities = []string{"container-runtime"} })
	until(t, "the node's capabilities are known", func() bool {
		return slices.Contains(m.Node("n1").Capabilities, "container-runtime")
	})
	m.assign("builder", "n1")
}

func TestS1_050_ANodeNeverEndsUpWithTwoBuilders(t *testing.T) {
	m := newMesh(t)
	m.node("n1")
	claiming := func(m *schema.Manifest) { m.Claims = []schema.Claim{{Role: "builder"}} }
	m.built(manifest("builder", "1", claiming), manifest("other", "1", claiming))
	m.assign("builder", "n1")
	refused(m, api.AssignmentAdd, api.AssignIn{Module: "other", Node: "n1"}, api.CodeConflict, "builder", "other", "n1")
}

func TestAssignmentsAreCheckedAndBringWhatTheyRequire(t *testing.T) {
	m := newMesh(t)
	m.node("n1")
	m.built(
		manifest("networking", "1", func(m *schema.Manifest) {
			m.Requires = []schema.Requirement{{Name: "private-network"}}
			m.Resources, m.Artifacts = nil, nil
		}),
		manifest("wireguard", "1", func(m *schema.Manifest) {
			m.Provides = []schema.Provision{{Name: "private-network", Scope: "node"}}
			m.Settings = map[string]schema.Setting{"port": {Type: "integer", Default: []byte("51820")}}
		}),
	)
	refused(m, api.AssignmentAdd, api.AssignIn{Module: "nothing", Node: "n1"}, api.CodeNotFound, "nothing")
	refused(m, api.AssignmentAdd, api.AssignIn{Module: "networking", Node: "n9"}, api.CodeNotFound, "n9")
	refused(m, api.AssignmentAdd, api.AssignIn{Module: "wireguard", Node: "n1", Settings: map[string]string{"port": "many"}}, api.CodeInvalidInput, "port", "integer")
	refused(m, api.AssignmentAdd, api.AssignIn{Module: "wireguard", Node: "n1", Settings: map[string]string{"colour": "red"}}, api.CodeInvalidInput, "colour")
	out := m.assign("networking", "n1")
	if len(out.Notes) != 1 || out.Notes[0] != "brings wireguard along" {
		t.Errorf("notes %v", out.Notes)
	}
	all := do(m, api.AssignmentList, api.None{}).Assignments
	if len(all) != 2 || all[0].Origin != "hand" || all[1].Module != "wireguard" || all[1].Origin != "brought" {
		t.Fatalf("assignments %+v", all)
	}
	if plan := m.plan("n1"); !slices.ContainsFunc(plan.Changes, func(c api.Change) bool { return c.Resource == "wireguard/run" && c.Action == "create" }) {
		t.Errorf("plan %+v", plan)
	}
	do(m, api.AssignmentRemove, api.UnassignIn{Module: "networking", Node: "n1"})
	if all = do(m, api.AssignmentList, api.None{}).Assignments; len(all) != 0 {
		t.Errorf("what nothing needs any more stayed: %+v", all)
	}
}

func TestASecondMachineUnderAKnownNameIsRefused(t *testing.T) {
	m := newMesh(t)
	one := m.node("n1")
	do(m, api.NodeAdd, one.Keys) // the same machine again
	refused(m, api.NodeAdd, m.Machine("n1").Keys, api.CodeConflict, "n1", "mesh node forget n1")
	do(m, api.NodeLabel, api.NodeLabelIn{Node: "n1", Labels: map[string]string{"rack": "a"}})
	if labels := m.Node("n1").Labels; labels["rack"] != "a" {
		t.Errorf("labels %v", labels)
	}
	do(m, api.NodeForget, api.NodeRef{Node: "n1"})
	refused(m, api.NodeShow, api.NodeRef{Node: "n1"}, api.CodeNotFound, "n1")
}
