package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestNothingConfirmedIsLostWhenTheBrokerDies(t *testing.T) {
	t.Parallel()
	broker := testenv.NewPrivateBroker(t)
	m := newMesh(t, broker.BrokerInfo)
	node := m.node(t)
	broker.Settle(t)
	host := dial(t, m.BrokerInfo, m.nodeURL(t, node))
	arrived := receive(t, host, bus.CommandQueue(node))

	// Eight publishers that never pause, over two deaths of the broker.
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	confirmed := map[string]bool{}
	failed := make(chan error, 8)
	var publishers sync.WaitGroup
	for p := range 8 {
		publishers.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d", p, i)
				err := m.controller.Publish(ctx, bus.Message{Exchange: bus.Orders, Key: bus.CommandQueue(node), CorrelationID: id})
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					failed <- err
					return
				}
				mu.Lock()
				confirmed[id] = true
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(confirmed)
	}
	got := map[string]bool{}
	drain := func() {
		for {
			select {
			case d := <-arrived:
				got[d.CorrelationID] = true
				continue
			default:
			}
			return
		}
	}
	for range 2 {
		before := count()
		eventually(t, func() error {
			drain()
			if count() < before+100 {
				return fmt.Errorf("%d confirmed, want 100 more than %d", count(), before)
			}
			return nil
		})
		broker.Kill()
		eventually(t, func() error {
			if m.controller.Ready() || host.Ready() {
				return errors.New("ready without a broker")
			}
			return nil
		})
		broker.Start(t)
	}
	before := count()
	eventually(t, func() error {
		drain()
		if count() < before+100 {
			return fmt.Errorf("%d confirmed, want 100 more than %d: not publishing again", count(), before)
		}
		return nil
	})
	stop()
	publishers.Wait()
	select {
	case err := <-failed:
		t.Errorf("a publisher gave up: %v", err)
	default:
	}
	eventually(t, func() error {
		drain()
		missing := 0
		for id := range confirmed {
			if !got[id] {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d confirmed messages did not arrive", missing, len(confirmed))
		}
		return nil
	})
	eventually(t, func() error {
		if !host.Ready() || !m.controller.Ready() {
			return fmt.Errorf("not ready: %+v, %+v", host.State(), m.controller.State())
		}
		return nil
	})
}

func TestQueuesComeBackWithABrokerThatLostEverything(t *testing.T) {
	t.Parallel()
	broker := testenv.NewPrivateBroker(t)
	conn := dial(t, broker.BrokerInfo, broker.URL)
	must(t, bus.Declare(deadline(t), conn, bus.MeshTopology()))
	must(t, bus.Declare(deadline(t), conn, bus.NodeTopology("kept")))
	must(t, bus.Declare(deadline(t), conn, bus.NodeTopology("forgotten")))
	must(t, bus.Undeclare(deadline(t), conn, bus.NodeTopology("forgotten")))
	arrived := receive(t, conn, bus.CommandQueue("kept"))
	broker.Kill()
	broker.Lose(t)
	broker.Start(t)
	must(t, conn.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.CommandQueue("kept"), CorrelationID: "after"}))
	if d := next(t, arrived); d.CorrelationID != "after" {
		t.Errorf("got %+v", d)
	}
	if _, err := conn.Inspect(deadline(t), bus.CommandQueue("forgotten")); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("a forgotten node's queue: %v", err)
	}
}

func TestPrefetchOneHoldsOneRequest(t *testing.T) {
	t.Parallel()
	m := alone(t)
	builder := dial(t, m.BrokerInfo, m.builderURL(t, m.node(t)))
	begun, goOn := make(chan string), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- builder.Consume(ctx, bus.Builds, 1, func(_ context.Context, d bus.Delivery) error {
			begun <- d.CorrelationID
			<-goOn
			return nil
		})
	}()
	for i := range 3 {
		must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: fmt.Sprint(i)}))
	}
	for want := range 3 {
		if got := next(t, begun); got != fmt.Sprint(want) {
			t.Errorf("began %s, want %d", got, want)
		}
		state, err := m.controller.Inspect(deadline(t), bus.Builds)
		must(t, err)
		if state.Ready != 2-want || state.Consumers != 1 {
			t.Errorf("while one is handled the queue is %+v, want %d ready for others", state, 2-want)
		}
		goOn <- struct{}{}
	}
	cancel()
	must(t, <-done)
}

func TestDeliveryEndsWithItsChannelAndIsGivenAgain(t *testing.T) {
	t.Parallel()
	m := alone(t)
	node := m.node(t)
	builder := dial(t, m.BrokerInfo, m.builderURL(t, node))
	begun, ended := make(chan bus.Delivery, 10), make(chan error, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- builder.Consume(ctx, bus.Builds, 1, func(ctx context.Context, d bus.Delivery) error {
			begun <- d
			if d.Redelivered {
				return nil
			}
			<-ctx.Done() // a long build, cancelled by the loss and by nothing else
			ended <- context.Cause(ctx)
			return nil // the acknowledgement of a delivery that is no longer ours
		})
	}()
	must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: "long"}))
	next(t, begun)
	must(t, m.admin.DeleteAccount(deadline(t), bus.BuilderName(node)))
	if err := next(t, ended); err == nil {
		t.Error("the handler's context ended without a cause")
	}
	must(t, m.admin.PutAccount(deadline(t), bus.BuilderAccount(node, "builder's "+node)))
	d := next(t, begun)
	if !d.Redelivered || d.CorrelationID != "long" || d.Attempts != 1 {
		t.Errorf("after the loss came %+v, want the same request again", d)
	}
	cancel()
	must(t, <-done)
}

func TestS1_041_RequestStaysUntilItsAnswerIsConfirmed(t *testing.T) {
	t.Parallel()
	broker := testenv.NewPrivateBroker(t)
	m := newMesh(t, broker.BrokerInfo)
	node := m.node(t)
	builder := dial(t, m.BrokerInfo, m.builderURL(t, node))
	results := receive(t, m.controller, bus.BuildResults)
	built, announce, unsent := make(chan bool, 10), make(chan struct{}), make(chan error, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- builder.Consume(ctx, bus.Builds, 1, func(ctx context.Context, d bus.Delivery) error {
			built <- d.Redelivered
			<-announce
			err := builder.Publish(ctx, bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildResult, CorrelationID: d.CorrelationID})
			if err != nil {
				unsent <- err
			}
			return err
		})
	}()
	must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: "1"}))
	next(t, built)
	broker.Control(t, "set_vm_memory_high_watermark", "absolute", "1")
	// The broker blocks a connection with the first message it sends, and takes that one.
	progress := bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildProgress("1")}
	if err := builder.Publish(deadline(t), progress); !errors.Is(err, bus.ErrUnrouted) {
		t.Errorf("progress nobody listens to: %v", err)
	}
	eventually(t, func() error {
		if s := builder.State(); s.Blocked == "" || builder.Ready() {
			return fmt.Errorf("state is %+v, want it blocked", s)
		}
		return nil
	})
	close(announce)
	eventually(t, func() error {
		alarms, err := m.admin.Alarms(deadline(t))
		if err == nil && len(alarms) == 0 {
			err = errors.New("the management API shows no alarm")
		}
		return err
	})
	// A second message waits with its context instead of hanging.
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := builder.Publish(short, bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildResult}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("publishing to a blocked broker: %v", err)
	}
	if len(results) != 0 {
		t.Fatal("the answer got away while the broker took none")
	}
	// Were the request acknowledged, the loss of its builder would not bring it back.
	must(t, m.admin.DeleteAccount(deadline(t), bus.BuilderName(node)))
	eventually(t, func() error {
		state, err := m.controller.Inspect(deadline(t), bus.Builds)
		if err == nil && state.Ready != 1 {
			err = fmt.Errorf("the queue of requests is %+v, want the request back", state)
		}
		return err
	})
	if err := next(t, unsent); err == nil {
		t.Error("the answer counts as sent")
	}
	broker.Control(t, "set_vm_memory_high_watermark", "absolute", "1GB")
	must(t, m.admin.PutAccount(deadline(t), bus.BuilderAccount(node, "builder's "+node)))
	if again := next(t, built); !again {
		t.Error("the request that came back is not marked as redelivered")
	}
	if d := next(t, results); d.CorrelationID != "1" {
		t.Errorf("result %+v", d)
	}
	cancel()
	must(t, <-done)
}

func TestCloseEndsWhileTheBrokerTakesNothing(t *testing.T) {
	t.Parallel()
	broker := testenv.NewPrivateBroker(t)
	m := newMesh(t, broker.BrokerInfo)
	broker.Control(t, "set_vm_memory_high_watermark", "absolute", "1")
	blocked := bus.Dial(t.Context(), bus.Config{URL: m.URL, Fingerprints: []string{m.Fingerprint}, Name: t.Name()})
	must(t, blocked.WaitReady(deadline(t)))
	short, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	big := bus.Message{Exchange: bus.Answers, Key: bus.KeyBuildResult, Body: make([]byte, bus.MaxBody)}
	if err := blocked.Publish(short, big); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("publishing to a blocked broker: %v", err)
	}
	closed := make(chan struct{})
	go func() {
		blocked.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("Close hangs")
	}
}
