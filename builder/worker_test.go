package builder_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/builder/buildertest"
	"github.com/mesh-control/mesh/builder/clone"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// The tests of this file share the one queue of builds and do not run in parallel.

// work runs a worker until the test ends, or until stop is called.
func work(t *testing.T, r *rig, conn *bus.Conn) (stop func()) {
	t.Helper()
	return run(t, &builder.Worker{Builder: r.Builder, Bus: conn})
}

func run(t *testing.T, worker *builder.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("worker: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func TestS1_033_ResultCarriesTheIDOfItsRequestHoweverItEnded(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t))
	work(t, r, mesh.Dial(mesh.BuilderURL("one")))
	repo := testenv.Git(t)
	writeSite(repo, "modules/a", "a")
	repo.Commit("a module")
	url := repo.URL()
	want := map[string]schema.Outcome{"good": schema.OutcomeBuilt, "bad": schema.OutcomeFailed, "local": schema.OutcomeRefused}
	mesh.Order(schema.Job{ID: "good", Repository: url, Path: "modules/a"})
	mesh.Order(schema.Job{ID: "bad", Repository: url, Path: "modules/none"})
	mesh.Order(schema.Job{ID: "local", Repository: repo.Bare, Path: "modules/a"})
	for range 3 {
		result := mesh.Next() // which also compares the message's correlation id
		if result.Outcome != want[result.ID] {
			t.Errorf("%s: %s %+v", result.ID, result.Outcome, result.Error)
		}
		delete(want, result.ID)
	}
	if len(want) > 0 {
		t.Errorf("no result for %v", want)
	}
	mesh.Settled()
}

func TestS1_043_OneBuilderRunsOneBuildAtATime(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t))
	repo := testenv.Git(t)
	const jobs = 5
	for i := range jobs {
		writeSite(repo, fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i))
	}
	repo.Commit("modules")
	for i := range jobs {
		mesh.Order(schema.Job{ID: fmt.Sprintf("job-%d", i), Repository: repo.URL(), Path: fmt.Sprintf("m%d", i)})
	}
	begun := 0
	r.OnPhase = func(p schema.Phase) {
		if p != schema.PhaseBuild {
			return
		}
		// Those not begun wait in the queue: none is at the builder unacknowledged beside this one.
		begun++
		state, err := mesh.Controller.Inspect(context.Background(), bus.Builds)
		if err != nil || state.Ready != jobs-begun {
			t.Errorf("build %d: %+v in the queue, %v", begun, state, err)
		}
	}
	work(t, r, mesh.Dial(mesh.BuilderURL("one")))
	var results []schema.Result
	for range jobs {
		results = append(results, mesh.Next())
	}
	for i, a := range results {
		if a.Outcome != schema.OutcomeBuilt || !a.Started.Before(a.Ended) {
			t.Errorf("%s: %s %v %v", a.ID, a.Outcome, a.Started, a.Ended)
		}
		for _, b := range results[:i] {
			if a.Started.Before(b.Ended) && b.Started.Before(a.Ended) {
				t.Errorf("%s and %s overlap", a.ID, b.ID)
			}
		}
	}
	mesh.Settled()
}

func TestS1_044_FailedBuildSaysWhyToWhoeverAsked(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t)).withEngine()
	repo := testenv.Git(t)
	repo.Write("module.json", `{"name": "x", "artifacts": {"image": {"kind": "image", "dockerfile": "Dockerfile"}}}`)
	repo.Write("Dockerfile", "FROM scratch\nCOPY nowhere-to-be-found /x\n")
	repo.Commit("fails")
	ctx, cancel := context.WithCancel(context.Background())
	replies, err := bus.NewReplies(ctx, mesh.Controller, "asker", nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- replies.Run(ctx) }()
	defer func() { cancel(); <-done }()
	answers, stop, err := replies.Ask(ctx, "why")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop(context.Background()) }()
	work(t, r, mesh.Dial(mesh.BuilderURL("one")))
	mesh.Order(schema.Job{ID: "why", Repository: repo.URL()})

	phases := map[schema.Phase]bool{}
	var result *schema.Result
	for result == nil {
		d := <-answers
		if d.Key == bus.KeyBuildResult {
			if result, err = schema.ParseResult("result", d.Body); err != nil {
				t.Fatal(err)
			}
			continue
		}
		phases[progressPhase(t, d.Body)] = true
	}
	if result.Outcome != schema.OutcomeFailed || result.Error == nil || result.Error.Reason != builder.ReasonImage {
		t.Fatalf("outcome %s %+v", result.Outcome, result.Error)
	}
	for _, text := range []string{result.Error.Message, result.Log} {
		if !strings.Contains(text, "nowhere-to-be-found") {
			t.Errorf("%q does not say why", text)
		}
	}
	if result.Error.Remedy == "" {
		t.Error("no remedy")
	}
	for _, phase := range []schema.Phase{schema.PhaseClone, schema.PhaseRead, schema.PhasePlan, schema.PhaseBuild} {
		if !phases[phase] {
			t.Errorf("no progress of phase %s reached the asker", phase)
		}
	}
	mesh.Next()
	mesh.Settled()
}

func progressPhase(t *testing.T, body []byte) schema.Phase {
	t.Helper()
	for _, p := range schema.Phases {
		if strings.Contains(string(body), fmt.Sprintf(`"phase":%q`, p)) {
			return p
		}
	}
	t.Errorf("progress without a phase: %s", body)
	return ""
}

func TestS1_045_RequestThatCannotBeReadEndsInARefusal(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t))
	work(t, r, mesh.Dial(mesh.BuilderURL("one")))
	repo := testenv.Git(t)
	writeSite(repo, ".", "a")
	repo.Commit("a module")
	for id, body := range map[string]string{
		"no-json":  "{",
		"unknown":  `{"schema": 1, "id": "unknown", "repository": "https://example.org/x", "path": "", "colour": "red"}`,
		"other-id": fmt.Sprintf(`{"schema": 1, "id": "another", "repository": %q, "path": ""}`, repo.URL()),
		"twice":    `{"schema": 1, "id": "twice", "id": "twice", "repository": "https://example.org/x", "path": ""}`,
	} {
		mesh.Send(id, []byte(body))
		result := mesh.Next()
		if result.ID != id || result.Outcome != schema.OutcomeRefused || result.Error.Reason != builder.ReasonMalformedJob {
			t.Errorf("%s: %s %s %+v", id, result.ID, result.Outcome, result.Error)
		}
	}
	mesh.Settled()
}

func TestS1_041_RequestIsUnacknowledgedUntilItsResultIsConfirmed(t *testing.T) {
	mesh := buildertest.New(t)
	wire := newWire(t, mesh.Host)
	r := newRig(t, "one", registrytest.Start(t))
	// From the announcement on the builder hears nothing from the broker: its result arrives
	// and the confirmation does not.
	r.OnPhase = func(p schema.Phase) {
		if p == schema.PhaseAnnounce {
			wire.deafen()
		}
	}
	conn := mesh.Dial(strings.Replace(mesh.BuilderURL("one"), mesh.Host, wire.address, 1))
	// Every channel the connection may publish on is open before that: opening one takes an answer.
	for range 64 {
		err := conn.Publish(t.Context(), bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildProgress("warm"), Body: []byte("{}")})
		if !errors.Is(err, bus.ErrUnrouted) {
			t.Fatal(err)
		}
	}
	stop := work(t, r, conn)
	repo := testenv.Git(t)
	writeSite(repo, ".", "a")
	repo.Commit("a module")
	mesh.Order(schema.Job{ID: "safe", Repository: repo.URL()})
	if result := mesh.Next(); result.Outcome != schema.OutcomeBuilt {
		t.Fatalf("%s %+v", result.Outcome, result.Error)
	}
	// Had it been acknowledged it would be gone; it comes to the next reader when the builder goes.
	wire.cut()
	stop()
	again := make(chan bus.Delivery, 1)
	mesh.Receive(bus.Builds, func(d bus.Delivery) { again <- d })
	select {
	case d := <-again:
		if d.CorrelationID != "safe" || !d.Redelivered {
			t.Errorf("delivery %+v", d)
		}
	case <-timeout():
		t.Fatal("the request is gone although its result was never confirmed")
	}
}

// wire passes bytes between a builder and the broker.
type wire struct {
	address string
	mu      sync.Mutex
	conns   []net.Conn
	deaf    chan struct{}
}

func newWire(t *testing.T, broker string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: listener.Addr().String(), deaf: make(chan struct{})}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", broker)
			if err != nil {
				near.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			running.Go(func() { _, _ = io.Copy(far, near); far.Close() })
			running.Go(func() { _, _ = io.Copy(hearing{near, w.deaf}, far); near.Close() })
		}
	})
	t.Cleanup(func() { listener.Close(); w.cut(); running.Wait() })
	return w
}

// deafen drops, from now on, everything the broker says.
func (w *wire) deafen() { close(w.deaf) }

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
}

type hearing struct {
	io.Writer
	deaf chan struct{}
}

func (h hearing) Write(p []byte) (int, error) {
	select {
	case <-h.deaf:
		return len(p), nil
	default:
		return h.Writer.Write(p)
	}
}

func TestCredentialsAppearNowhere(t *testing.T) {
	mesh := buildertest.New(t)
	r := newRig(t, "one", registrytest.Start(t))
	const canary = "canary-3141592653"
	r.Open = func(string, schema.Sealed) ([]byte, error) {
		return []byte(`{"user": "u", "password": "` + canary + `"}`), nil
	}
	work(t, r, mesh.Dial(mesh.BuilderURL("one")))
	sealed := map[string]schema.Sealed{"one": {Recipient: "sha256:" + strings.Repeat("0", 64), Info: "x", Data: []byte("x")}}
	mesh.Order(schema.Job{ID: "a", Repository: "http://token-" + canary + "@127.0.0.1:1/x.git", Credentials: sealed})
	mesh.Order(schema.Job{ID: "b", Repository: "http://127.0.0.1:1/" + canary + ".git", Credentials: sealed})
	// An address with a token in it is refused unread; the other is tried.
	for _, reason := range []string{clone.ReasonAddress, clone.ReasonUnreachable} {
		result := mesh.Next()
		if result.Error == nil || result.Error.Reason != reason {
			t.Errorf("%s %+v", result.Outcome, result.Error)
		}
		if text := fmt.Sprintf("%+v %+v", result.Error, result.Log); strings.Contains(text, canary) {
			t.Errorf("a credential is in the result: %s", text)
		}
	}
	mesh.Settled()
}
