package reconciletest

import (
	"crypto/ed25519"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/schema"
)

// Machine plays a node's host: it has the node's keys and its account.
type Machine struct {
	Name     string
	Keys     api.NodeAddIn
	Sealing  []byte // private
	Sequence int64  // of the last report

	m    *Mesh
	conn *bus.Conn
}

// Machine is one that the mesh does not know yet.
func (m *Mesh) Machine(name string) *Machine {
	m.T.Helper()
	sealing, public, err := pki.NewSealingKey()
	if err != nil {
		m.T.Fatal(err)
	}
	return &Machine{m: m, Name: name, Sealing: sealing, Keys: api.NodeAddIn{
		Name: name, Address: "10.0.0." + name[1:], Identity: Key(m.T).Public().(ed25519.PublicKey), SealingKey: public,
	}}
}

// Join adds a node whose host reports once, with the capabilities given, and is not heard of
// again by itself.
func (m *Mesh) Join(name string, capabilities ...string) *Machine {
	m.T.Helper()
	n := m.Machine(name)
	m.nodes = append(m.nodes, name)
	Do(m, api.NodeAdd, n.Keys)
	n.conn = m.Dial(name, bus.NodeAccount)
	n.Report(func(r *schema.Report) { r.Capabilities = capabilities })
	n.AwaitKnown()
	return n
}

// AwaitKnown waits until the controller has a report of the node's.
func (n *Machine) AwaitKnown() {
	n.m.T.Helper()
	Until(n.m.T, n.Name+" is known", func() bool { return n.m.Node(n.Name).State != "never-heard" })
}

// Report sends the next report, with a change to one that says nothing.
func (n *Machine) Report(change func(*schema.Report)) {
	n.Sequence++
	report := schema.Report{
		Schema: 1, Node: n.Name, Epoch: 1, Sequence: n.Sequence, Resources: []schema.ResourceStatus{}, Capabilities: []string{},
		Agent: schema.Agent{Version: "test", Schema: 1, Clock: time.Now().UTC(), Platform: "linux/amd64"},
	}
	change(&report)
	n.Send(report)
}

// Send publishes a report under this node's key, whichever node it speaks of.
func (n *Machine) Send(report schema.Report) {
	n.m.Publish(n.conn, bus.Message{Exchange: bus.Answers, Key: bus.KeyReport(n.Name), Type: "report"}, report)
}

// Listen takes the node's declarations from its queue, and checks each signature.
func (n *Machine) Listen(each func(schema.Declaration)) {
	public := n.m.Config.DeclarationKey.Public().(ed25519.PublicKey)
	n.m.consume(n.conn, bus.DeclareQueue(n.Name), func(d bus.Delivery) {
		declaration, err := schema.ParseDeclaration("declaration", d.Body)
		if err == nil {
			err = pki.VerifyDeclaration(public, *declaration)
		}
		if err != nil {
			n.m.T.Errorf("declaration of %s: %v", n.Name, err)
			return
		}
		each(*declaration)
	})
}

// Applied says in a report that a declaration was applied.
func Applied(r *schema.Report, d schema.Declaration) {
	r.Seen, r.Applied, r.AppliedHash, r.Outcome = d.Generation, d.Generation, d.Hash, "applied"
}
