package reconcile_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/reconciletest"
	"github.com/mesh-control/mesh/schema"
)

// told is node n1 with module web pushed to it, and the declaration it took from its queue.
func (m *mesh) told() (*machine, schema.Declaration) {
	m.t.Helper()
	n := m.node("n1")
	n.listen()
	m.built(manifest("web", "1", nil))
	m.assign("web", "n1")
	m.push("n1")
	return n, n.next()
}

func TestS1_077_BuiltIsNotReportedAsDelivered(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.built(manifest("web", "1", nil))
	m.assign("web", "n1")
	if pushed := m.push("n1"); pushed.State != "pushed" || pushed.Generation != 1 {
		t.Fatalf("push: %+v", pushed)
	}
	first := n.next()
	if !has(first, "web/run") || first.Generation != 1 || first.Epoch != 1 {
		t.Fatalf("declaration %+v", first)
	}
	if state := m.Node("n1").State; state != "pushed" {
		t.Errorf("sent is not applied: state %s", state)
	}
	n.applied(first)
	node := m.Node("n1")
	if node.State != "applied" || len(node.Reasons) != 0 {
		t.Fatalf("node %+v", node)
	}
	old := node.Modules[0].Running

	m.built(manifest("web", "2", nil))
	m.plan("n1") // waits for the composition
	node = m.Node("n1")
	if node.State != "behind" || node.Pushed != 1 || node.Modules[0].Running != old || node.Modules[0].Declared == old || node.Modules[0].State != "behind" {
		t.Errorf("between build and push: %+v", node)
	}
	if len(node.Reasons) != 1 || !strings.Contains(node.Reasons[0].Message, "web") {
		t.Errorf("the reason does not name the module: %v", node.Reasons)
	}
	select {
	case d := <-n.told:
		t.Errorf("building delivered generation %d", d.Generation)
	default:
	}
	m.push("n1")
	second := n.next()
	if second.Generation != 2 || second.Hash == first.Hash {
		t.Errorf("second declaration %d %s", second.Generation, second.Hash)
	}
	n.applied(second)
	if behind := do(m, api.ModuleBehind, api.None{}).Nodes; len(behind) != 0 {
		t.Errorf("still behind: %v", behind)
	}
}

func TestS1_069_PushBehindTouchesOnlyNodesThatAreBehind(t *testing.T) {
	m := newMesh(t)
	one, two := m.node("n1"), m.node("n2")
	one.listen()
	two.listen()
	m.built(manifest("web", "1", nil))
	m.assign("web", "n1")
	for _, n := range []*machine{one, two} {
		m.push(n.Name)
		n.applied(n.next())
	}
	m.assign("web", "n2")
	plans := do(m, api.DeliveryPlan, api.PlanIn{Behind: true}).Nodes
	if len(plans) != 1 || plans[0].Node != "n2" {
		t.Fatalf("behind: %+v", plans)
	}
	do(m, api.DeliveryPush, api.PushIn{Plans: map[string]string{"n2": plans[0].Hash}})
	two.next()
	var generations []int64
	for _, node := range do(m, api.NodeList, api.None{}).Nodes {
		generations = append(generations, node.Pushed)
	}
	if generations[0] != 1 || generations[1] != 2 {
		t.Errorf("generations %v", generations)
	}
}

func TestS2_196_GenerationGrowsOnlyWithTheHash(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.built(manifest("web", "1", func(m *schema.Manifest) {
		m.OwnSecrets = map[string]schema.OwnSecret{"key": {Path: "/etc/web/key"}}
	}))
	m.assign("web", "n1")
	hash := m.plan("n1").Hash
	m.push("n1")
	n.applied(n.next())
	for range 100 {
		m.Recompose("n1")
		if now := m.plan("n1").Hash; now != hash {
			t.Fatalf("composing again changed the hash from %s to %s", hash, now)
		}
	}
	if again := m.push("n1"); again.Generation != 1 {
		t.Errorf("pushing the same again allotted generation %d", again.Generation)
	}
}

func TestPushIsOfThePlanThatWasShown(t *testing.T) {
	m := newMesh(t)
	m.node("n1")
	m.built(manifest("web", "1", nil), manifest("api", "1", nil))
	m.assign("web", "n1")
	shown := m.plan("n1").Hash
	m.assign("api", "n1")
	m.plan("n1")
	out := do(m, api.DeliveryPush, api.PushIn{Plans: map[string]string{"n1": shown}})
	if out.Nodes[0].State != "conflict" {
		t.Errorf("a plan that no longer holds was pushed: %+v", out.Nodes[0])
	}
	if node := m.Node("n1"); node.Pushed != 0 {
		t.Errorf("generation %d was allotted", node.Pushed)
	}
}

func TestOnlyTheNewestDeclarationReachesAHostThatWasAway(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	m.built(manifest("web", "1", nil))
	m.assign("web", "n1")
	m.push("n1")
	published := func(generation int64) func() bool {
		return func() bool {
			var done bool
			err := m.Pool.QueryRow(t.Context(), `SELECT published_at IS NOT NULL FROM mesh.declarations WHERE node = 'n1' AND generation = $1`, generation).Scan(&done)
			return err == nil && done
		}
	}
	until(t, "generation 1 is with the broker", published(1))
	m.built(manifest("web", "2", nil))
	m.push("n1")
	until(t, "generation 2 is with the broker", published(2))
	watch := do(m, api.DeliveryWatch, api.DeliveryWatchIn{Generations: map[string]int64{"n1": 2}})
	if watch.Done || watch.Nodes[0].State != "waiting" || watch.Nodes[0].Message == "" {
		t.Errorf("a host that is away: %+v", watch)
	}
	n.listen()
	if d := n.next(); d.Generation != 2 {
		t.Errorf("told generation %d first", d.Generation)
	}
}

// A queue is not the record: what it lost is sent again until the node has seen it.
func TestALostDeclarationIsSentAgain(t *testing.T) {
	m := newMesh(t)
	n, lost := m.told() // taken from the queue and forgotten
	until(t, "the sweep finds it", func() bool {
		_, err := m.Pool.Exec(t.Context(), `UPDATE mesh.declarations SET published_at = published_at - interval '1 hour'`)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Pool.Exec(t.Context(), `UPDATE mesh.work SET due = mesh.mesh_now() WHERE kind = 'node.deliver-sweep'`)
		if err != nil {
			t.Fatal(err)
		}
		return len(n.told) > 0
	})
	if again := n.next(); again.Generation != lost.Generation || again.Hash != lost.Hash {
		t.Errorf("sent generation %d, then %d", lost.Generation, again.Generation)
	}
}

func TestReportsAreBelievedFromTheirOwnNodeOnly(t *testing.T) {
	m := newMesh(t)
	one, two := m.node("n1"), m.node("n2")
	// Under its own key, speaking of another.
	forged := schema.Report{Schema: 1, Node: "n2", Epoch: 9, Sequence: 99, Seen: 7, Applied: 7, Resources: []schema.ResourceStatus{}, Capabilities: []string{},
		Agent: schema.Agent{Version: "x", Schema: 1, Platform: "linux/amd64", Clock: fixedClock}}
	one.Send(forged)
	until(t, "the forged report is recorded as refused", func() bool {
		var count int
		err := m.Pool.QueryRow(t.Context(), `SELECT count(*) FROM mesh.refused_messages WHERE user_id = 'node.n1'`).Scan(&count)
		return err == nil && count == 1
	})
	if node := m.Node("n2"); node.Applied != 0 {
		t.Errorf("a forged report was believed: %+v", node)
	}
	// A late one changes nothing.
	two.Sequence = 10
	two.Report(func(r *schema.Report) { r.Seen = 5 })
	until(t, "the report is stored", func() bool { return seen(m, "n2") == 5 })
	two.Sequence = 3
	two.Report(func(r *schema.Report) { r.Seen = 4 })
	two.Sequence = 20
	two.Report(func(r *schema.Report) { r.Seen = 6 })
	until(t, "the newer report is stored", func() bool { now := seen(m, "n2"); return now != 5 })
	if now := seen(m, "n2"); now != 6 {
		t.Errorf("a late report was believed: seen %d", now)
	}
}

func seen(m *mesh, node string) (generation int64) {
	m.t.Helper()
	if err := m.Pool.QueryRow(m.t.Context(), `SELECT seen FROM mesh.reports WHERE node = $1`, node).Scan(&generation); err != nil {
		m.t.Fatal(err)
	}
	return generation
}

func TestFailedApplyIsShownAndTriedAgain(t *testing.T) {
	m := newMesh(t)
	n, d := m.told()
	n.Report(func(r *schema.Report) { r.Seen, r.Outcome, r.Cause = d.Generation, "failed", "web/run: exit 1" })
	watch := do(m, api.DeliveryWatch, api.DeliveryWatchIn{Generations: map[string]int64{"n1": d.Generation}})
	until(t, "the failure is seen", func() bool {
		watch = do(m, api.DeliveryWatch, api.DeliveryWatchIn{Generations: map[string]int64{"n1": d.Generation}})
		return watch.Done
	})
	if watch.Nodes[0].State != "failed" || watch.Nodes[0].Message != "web/run: exit 1" {
		t.Errorf("watch %+v", watch.Nodes[0])
	}
	if node := m.Node("n1"); node.State != "failed" || len(node.Reasons) == 0 {
		t.Errorf("node %+v", node)
	}
	if again := m.push("n1"); again.Generation != d.Generation+1 {
		t.Errorf("pushing after a failure tries again: %+v", again)
	}
}

// A host that refuses says so of the generation, and does not see it: that is final, is told
// apart from "sent", and pushing again means trying again.
func TestRefusedIsShownAndTriedAgain(t *testing.T) {
	m := newMesh(t)
	n, first := m.told()
	n.Report(func(r *schema.Report) {
		r.Outcome, r.Cause, r.Refused = "refused", "no field of that name", first.Generation
	})
	until(t, "the refusal is shown", func() bool {
		return m.Node("n1").State == "refused"
	})
	watched := do(m, api.DeliveryWatch, api.DeliveryWatchIn{Generations: map[string]int64{"n1": first.Generation}})
	if !watched.Done || watched.Nodes[0].State != "refused" || watched.Nodes[0].Message != "no field of that name" {
		t.Errorf("watched %+v", watched)
	}
	if pushed := m.push("n1"); pushed.Generation != first.Generation+1 {
		t.Errorf("pushed again as generation %d", pushed.Generation)
	}
}

// A push to a host nobody has heard of says so at once; there is nothing to wait for.
func TestAPushToASilentHostIsNotWaitedFor(t *testing.T) {
	m := newMesh(t)
	do(m, api.NodeAdd, m.Machine("n9").Keys)
	m.built(manifest("web", "1", nil))
	m.assign("web", "n9")
	pushed := m.push("n9")
	watched := do(m, api.DeliveryWatch, api.DeliveryWatchIn{Generations: map[string]int64{"n9": pushed.Generation}})
	if !watched.Done || watched.Nodes[0].State != "waiting" || !strings.Contains(watched.Nodes[0].Message, "never reported") {
		t.Errorf("watched %+v", watched)
	}
}

// What a caller did just before is in what it is told, although composing takes its time.
func TestWhyAndBehindFollowFromWhatWasJustRecorded(t *testing.T) {
	m := newMesh(t)
	n := m.node("n1")
	n.listen()
	m.built(manifest("web", "1", current))
	m.Source("web", "1")
	m.assign("web", "n1")
	m.push("n1")
	n.applied(n.next())
	if why := do(m, api.ModuleWhy, api.WhyIn{Module: "web", Node: "n1"}); why.Next != "" {
		t.Fatalf("why %+v", why)
	}

	composing, err := m.Pool.Begin(t.Context()) // composition waits for this
	if err != nil {
		t.Fatal(err)
	}
	if _, err := composing.Exec(t.Context(), `SELECT FROM mesh.node_state WHERE node = 'n1' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { _ = composing.Rollback(context.Background()) })
	m.Source("web", "2")
	m.built(manifest("web", "2", current))
	why := do(m, api.ModuleWhy, api.WhyIn{Module: "web", Node: "n1"})
	if why.Next != "mesh push n1" {
		t.Errorf("next %q: %+v", why.Next, why.Facts)
	}
	for _, fact := range why.Facts {
		if fact.Fact == "declared" && !strings.Contains(fact.Message, result(manifest("web", "2", current)).Digest) {
			t.Errorf("declared: %s", fact.Message)
		}
	}
	if nodes := do(m, api.ModuleBehind, api.None{}).Nodes; len(nodes) != 1 {
		t.Errorf("nodes behind: %+v", nodes)
	}
}

// A heartbeat is not an application: each fact keeps the time at which it came about.
func TestEachFactKeepsItsTime(t *testing.T) {
	m := newMesh(t)
	n, d := m.told()
	n.applied(d)
	before := m.Node("n1")
	if before.DeclaredAt.IsZero() || before.PushedAt.IsZero() || before.AppliedAt.Before(before.PushedAt) {
		t.Fatalf("declared %s, pushed %s, applied %s", before.DeclaredAt, before.PushedAt, before.AppliedAt)
	}
	n.Report(func(r *schema.Report) { reconciletest.Applied(r, d) })
	until(t, "the next report is stored", func() bool { return m.Node("n1").LastReport.After(before.LastReport) })
	after := m.Node("n1")
	if !after.AppliedAt.Equal(before.AppliedAt) || !after.DeclaredAt.Equal(before.DeclaredAt) {
		t.Errorf("applied %s, then %s; declared %s, then %s", before.AppliedAt, after.AppliedAt, before.DeclaredAt, after.DeclaredAt)
	}
	for _, fact := range do(m, api.ModuleWhy, api.WhyIn{Module: "web", Node: "n1"}).Facts {
		if fact.At.IsZero() && fact.Fact != "behind" && fact.Fact != "built" {
			t.Errorf("%s has no time: %s", fact.Fact, fact.Message)
		}
	}
}
