package reconcile_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func TestMain(m *testing.M) { testenv.Run(m, registrytest.Leaks()) }

const repository = reconciletest.Repository

var (
	until    = reconciletest.Until
	hex40    = reconciletest.Hex40
	manifest = reconciletest.Manifest
	current  = reconciletest.Current
	result   = reconciletest.Result
)

// mesh is a controller on real servers.
type mesh struct {
	*reconciletest.Mesh
	t *testing.T
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	return &mesh{reconciletest.New(t), t}
}

func do[In, Out any](m *mesh, c api.Call[In, Out], in In) Out {
	m.t.Helper()
	return reconciletest.Do(m.Mesh, c, in)
}

// refused checks a method's refusal: its code, and the words it has to say.
func refused[In, Out any](m *mesh, c api.Call[In, Out], in In, code string, words ...string) {
	m.t.Helper()
	_, err := c.Do(m.t.Context(), m, in)
	var refusal *api.Error
	if !errors.As(err, &refusal) {
		m.t.Fatalf("%s/%s was not refused: %v", c.Group, c.Method, err)
	}
	if refusal.Code != code {
		m.t.Errorf("code %s, want %s (%s)", refusal.Code, code, refusal.Message)
	}
	for _, word := range words {
		if !strings.Contains(refusal.Message+" "+refusal.Remedy, word) {
			m.t.Errorf("the refusal does not say %q: %s (%s)", word, refusal.Message, refusal.Remedy)
		}
	}
}

// machine plays a node's host, and keeps what it is told.
type machine struct {
	*reconciletest.Machine
	m    *mesh
	told chan schema.Declaration
}

// node adds a node whose host reports with the capabilities given.
func (m *mesh) node(name string, capabilities ...string) *machine {
	m.t.Helper()
	return &machine{Machine: m.Join(name, capabilities...), m: m, told: make(chan schema.Declaration, 64)}
}

func (n *machine) listen() { n.Listen(func(d schema.Declaration) { n.told <- d }) }

// next is the next declaration the node is told.
func (n *machine) next() schema.Declaration {
	n.m.t.Helper()
	select {
	case d := <-n.told:
		return d
	case <-time.After(reconciletest.Patience):
		n.m.t.Fatalf("%s was told nothing", n.Name)
	}
	return schema.Declaration{}
}

// newer is the next declaration of a later generation: pushing again what was pushed tells
// the node the same once more.
func (n *machine) newer(than schema.Declaration) schema.Declaration {
	n.m.t.Helper()
	for {
		if d := n.next(); d.Generation > than.Generation {
			return d
		}
	}
}

// applied reports that a declaration was applied.
func (n *machine) applied(d schema.Declaration) {
	n.m.t.Helper()
	n.Report(func(r *schema.Report) { reconciletest.Applied(r, d) })
	until(n.m.t, "the report is stored", func() bool { return n.m.Node(n.Name).Applied == d.Generation })
}

// open opens the secret a declaration lands in a file.
func (n *machine) open(d schema.Declaration, id string) []byte {
	n.m.t.Helper()
	resource := find(n.m.t, d, id)
	if resource.Sealed == nil {
		n.m.t.Fatalf("%s is not sealed", id)
	}
	value, err := pki.Open(n.Sealing, *resource.Sealed)
	if err != nil {
		n.m.t.Fatalf("open %s: %v", id, err)
	}
	return value
}

func find(t *testing.T, d schema.Declaration, id string) schema.Resource {
	t.Helper()
	at := slices.IndexFunc(d.Resources, func(r schema.Resource) bool { return r.ID == id })
	if at < 0 {
		t.Fatalf("no resource %s in the declaration of %s", id, d.Node)
	}
	return d.Resources[at]
}

func has(d schema.Declaration, id string) bool {
	return slices.ContainsFunc(d.Resources, func(r schema.Resource) bool { return r.ID == id })
}

// built makes a manifest one the mesh holds, as a recorded result does.
func (m *mesh) built(manifests ...schema.Manifest) {
	m.t.Helper()
	var results []schema.Result
	for _, one := range manifests {
		results = append(results, result(one))
	}
	m.Hold(results...)
}

func (m *mesh) plan(node string) api.NodePlan {
	m.t.Helper()
	plans := do(m, api.DeliveryPlan, api.PlanIn{Nodes: []string{node}}).Nodes
	if len(plans) != 1 {
		m.t.Fatalf("plans of %s: %v", node, plans)
	}
	return plans[0]
}

// push pushes what a plan shows now.
func (m *mesh) push(node string) api.NodePush {
	m.t.Helper()
	out := do(m, api.DeliveryPush, api.PushIn{Plans: map[string]string{node: m.plan(node).Hash}})
	return out.Nodes[0]
}

func (m *mesh) assign(module, node string) api.AssignOut {
	m.t.Helper()
	return do(m, api.AssignmentAdd, api.AssignIn{Module: module, Node: node})
}
