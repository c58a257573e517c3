package bus_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
)

// intruder speaks the protocol itself, past everything this package does to behave.
type intruder struct {
	conn *amqp.Connection
	user string
}

func intrude(t *testing.T, m mesh, address, user string) intruder {
	t.Helper()
	conn, err := amqp.DialConfig(address, amqp.Config{TLSClientConfig: clientTLS(m)})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return intruder{conn, user}
}

func clientTLS(m mesh) *tls.Config { return pki.ClientConfig(m.Fingerprint) }

// refused runs try on a fresh channel and wants ACCESS_REFUSED.
func (i intruder) refused(t *testing.T, what string, try func(*amqp.Channel) error) {
	t.Helper()
	channel, err := i.conn.Channel()
	must(t, err)
	defer channel.Close()
	err = try(channel)
	var refusal *amqp.Error
	if !errors.As(err, &refusal) || refusal.Code != amqp.AccessRefused {
		t.Errorf("%s: %v, want ACCESS_REFUSED", what, err)
	}
}

// fate of a message: "confirmed", "returned", or the broker's refusal.
func (i intruder) publish(t *testing.T, exchange, key string, headers amqp.Table) string {
	t.Helper()
	channel, err := i.conn.Channel()
	must(t, err)
	defer channel.Close()
	must(t, channel.Confirm(false))
	returned := channel.NotifyReturn(make(chan amqp.Return, 1))
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	confirmed := channel.NotifyPublish(make(chan amqp.Confirmation, 1))
	must(t, channel.Publish(exchange, key, true, false, amqp.Publishing{Headers: headers, UserId: i.user, Body: []byte("forged")}))
	select {
	case refusal := <-closed:
		return refusal.Reason
	case c := <-confirmed:
		select {
		case <-returned:
			return "returned"
		default:
		}
		if c.Ack {
			return "confirmed"
		}
		if refusal := <-closed; refusal != nil {
			return refusal.Reason
		}
		return "not confirmed"
	case <-time.After(patience):
		t.Fatal("the broker says nothing")
		return ""
	}
}

// untouched wants a node's queues empty once everything sent before has been routed.
func (m mesh) untouched(t *testing.T, node, after string) {
	t.Helper()
	for _, queue := range []string{bus.DeclareQueue(node), bus.CommandQueue(node)} {
		state, err := m.controller.Inspect(deadline(t), queue)
		must(t, err)
		if state.Ready != 0 {
			t.Errorf("%s put %d messages into %s", after, state.Ready, queue)
		}
	}
}

func TestS1_034_BuilderAndNodeAreTwoAccounts(t *testing.T) {
	t.Parallel()
	m := shared(t)
	node := m.node(t)
	builder, err := m.admin.Account(deadline(t), "builder."+node)
	must(t, err)
	host, err := m.admin.Account(deadline(t), "node."+node)
	must(t, err)
	if builder.PasswordHash == host.PasswordHash || builder.Read == host.Read || fmt.Sprint(builder.Topics) == fmt.Sprint(host.Topics) {
		t.Errorf("the accounts are alike: %+v, %+v", builder, host)
	}
	for _, queue := range []string{bus.DeclareQueue(node), bus.CommandQueue(node)} {
		if regexp.MustCompile(builder.Read).MatchString(queue) || !regexp.MustCompile(host.Read).MatchString(queue) {
			t.Errorf("%s is read with %q by the builder and with %q by the host", queue, builder.Read, host.Read)
		}
	}
	// Neither password opens the other account.
	for user, password := range map[string]string{
		bus.BuilderName(node): "node's " + node, bus.NodeName(node): "builder's " + node,
	} {
		conn, err := amqp.DialConfig(as(t, m.BrokerInfo, user, password), amqp.Config{TLSClientConfig: clientTLS(m)})
		if err == nil {
			conn.Close()
			t.Errorf("%s was let in with the other's password", user)
		}
	}
}

func TestS1_035_BuilderReadsNoQueueButBuilds(t *testing.T) {
	t.Parallel()
	m := shared(t)
	own, other := m.node(t), m.node(t)
	must(t, bus.Declare(deadline(t), m.controller, bus.ReplyTopology(own)))
	builder := intrude(t, m, m.builderURL(t, own), bus.BuilderName(own))
	for _, queue := range []string{
		bus.DeclareQueue(own), bus.CommandQueue(own), bus.DeclareQueue(other), bus.CommandQueue(other),
		bus.BuildsDead, bus.BuildResults, bus.Reports, bus.ReplyQueue(own),
	} {
		builder.refused(t, "consume "+queue, func(c *amqp.Channel) error {
			_, err := c.Consume(queue, "", false, false, false, false, nil)
			return err
		})
		builder.refused(t, "get "+queue, func(c *amqp.Channel) error {
			_, _, err := c.Get(queue, false)
			return err
		})
		builder.refused(t, "purge "+queue, func(c *amqp.Channel) error {
			_, err := c.QueuePurge(queue, false)
			return err
		})
	}
	// The one it is there for.
	channel, err := builder.conn.Channel()
	must(t, err)
	defer channel.Close()
	if err := channel.Qos(1, 0, false); err != nil {
		t.Error(err)
	}
	if _, err := channel.Consume(bus.Builds, "", false, false, false, false, nil); err != nil {
		t.Errorf("consume %s: %v", bus.Builds, err)
	}
}

func TestS1_036_BuilderWritesAnswersOnly(t *testing.T) {
	t.Parallel()
	m := shared(t)
	node := m.node(t)
	builder := intrude(t, m, m.builderURL(t, node), bus.BuilderName(node))
	for _, c := range []struct{ exchange, key string }{
		{bus.Orders, bus.KeyBuildRequest}, {bus.Orders, bus.KeyBuildResult}, {bus.Orders, bus.DeclareQueue(node)},
		{"", bus.Builds}, {"amq.default", bus.Builds}, {"amq.topic", bus.KeyBuildResult}, {"amq.direct", "x"}, {"amq.fanout", ""},
		{bus.Answers, bus.KeyReport(node)}, {bus.Answers, bus.KeyBuildRequest}, {bus.Answers, "build.result.x"},
		{bus.Answers, "build.progress."}, {bus.Answers, "build.progress"}, {bus.Answers, "xbuild.result"}, {bus.Answers, ""},
	} {
		if fate := builder.publish(t, c.exchange, c.key, nil); !strings.Contains(fate, "ACCESS_REFUSED") &&
			!strings.Contains(fate, "refused") {
			t.Errorf("publishing %q to %q: %s, want it refused", c.key, c.exchange, fate)
		}
	}
	if fate := builder.publish(t, bus.Answers, bus.KeyBuildResult, nil); fate != "confirmed" {
		t.Errorf("a result: %s", fate)
	}
	if fate := builder.publish(t, bus.Answers, bus.KeyBuildProgress("id"), nil); fate != "returned" && fate != "confirmed" {
		t.Errorf("progress nobody listens to: %s", fate)
	}
	// Somebody else's name on it is refused by the broker.
	forger := intruder{builder.conn, bus.ControllerName}
	if fate := forger.publish(t, bus.Answers, bus.KeyBuildResult, nil); !strings.Contains(fate, "PRECONDITION_FAILED") {
		t.Errorf("a result in the controller's name: %s", fate)
	}
}

func TestS1_037_BuilderCannotReachNodeQueues(t *testing.T) {
	t.Parallel()
	m := shared(t)
	own, other := m.node(t), m.node(t)
	builder := intrude(t, m, m.builderURL(t, own), bus.BuilderName(own))
	for _, node := range []string{own, other} {
		for _, queue := range []string{bus.DeclareQueue(node), bus.CommandQueue(node)} {
			for _, exchange := range []string{"", "amq.default", bus.Orders, bus.Answers, "amq.topic", "amq.direct", "amq.headers"} {
				fate := builder.publish(t, exchange, queue, nil)
				if fate == "confirmed" {
					t.Errorf("publishing %s to %q was confirmed", queue, exchange)
				}
				m.untouched(t, node, fmt.Sprintf("publishing %s to %q", queue, exchange))
			}
			// A CC or BCC header adds keys that a topic permission does not see.
			for _, header := range []string{"CC", "BCC"} {
				what := header + " header with " + queue
				if fate := builder.publish(t, bus.Answers, bus.KeyBuildResult, amqp.Table{header: []any{queue}}); fate != "confirmed" {
					t.Errorf("%s: %s; the walls would not have been tried", what, fate)
				}
				m.untouched(t, node, what)
			}
			builder.refused(t, "declare "+queue, func(c *amqp.Channel) error {
				_, err := c.QueueDeclare(queue, true, false, false, false, nil)
				return err
			})
			builder.refused(t, "bind "+queue, func(c *amqp.Channel) error {
				return c.QueueBind(queue, "#", bus.Answers, false, nil)
			})
			builder.refused(t, "unbind "+queue, func(c *amqp.Channel) error {
				return c.QueueUnbind(queue, queue, bus.Orders, nil)
			})
			builder.refused(t, "delete "+queue, func(c *amqp.Channel) error {
				_, err := c.QueueDelete(queue, false, false, false)
				return err
			})
		}
	}
	m.builderDeclaresNothing(t, builder)
	for _, node := range []string{own, other} {
		m.untouched(t, node, "all of it")
		must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.DeclareQueue(node), Body: []byte("{}")}))
	}
}

// builderDeclaresNothing: a queue or exchange of its own could carry messages on.
func (m mesh) builderDeclaresNothing(t *testing.T, builder intruder) {
	t.Helper()
	mine := fresh("mine")
	builder.refused(t, "declare a queue of its own", func(c *amqp.Channel) error {
		_, err := c.QueueDeclare(mine, true, false, false, false, nil)
		return err
	})
	builder.refused(t, "declare a queue that dead-letters into orders", func(c *amqp.Channel) error {
		_, err := c.QueueDeclare(mine, false, true, true, false, amqp.Table{"x-dead-letter-exchange": bus.Orders, "x-message-ttl": int64(1)})
		return err
	})
	builder.refused(t, "declare a queue the broker names", func(c *amqp.Channel) error {
		_, err := c.QueueDeclare("", false, true, true, false, nil)
		return err
	})
	builder.refused(t, "declare an exchange", func(c *amqp.Channel) error {
		return c.ExchangeDeclare(mine, "fanout", false, true, false, false, nil)
	})
	builder.refused(t, "bind orders to answers", func(c *amqp.Channel) error {
		return c.ExchangeBind(bus.Orders, "#", bus.Answers, false, nil)
	})
	builder.refused(t, "delete orders", func(c *amqp.Channel) error {
		return c.ExchangeDelete(bus.Orders, false, false)
	})
}

func TestNodeReadsOnlyItsOwnAndReportsOnlyOfItself(t *testing.T) {
	t.Parallel()
	m := shared(t)
	own, other := m.node(t), m.node(t)
	host := intrude(t, m, m.nodeURL(t, own), bus.NodeName(own))
	for _, queue := range []string{bus.DeclareQueue(other), bus.CommandQueue(other), bus.Builds, bus.BuildsDead, bus.Reports, bus.BuildResults} {
		host.refused(t, "consume "+queue, func(c *amqp.Channel) error {
			_, err := c.Consume(queue, "", false, false, false, false, nil)
			return err
		})
	}
	for _, c := range []struct{ exchange, key string }{
		{bus.Answers, bus.KeyReport(other)}, {bus.Answers, bus.KeyReport(own + "x")}, {bus.Answers, bus.KeyBuildResult},
		{bus.Answers, bus.KeyBuildProgress("x")}, {bus.Orders, bus.DeclareQueue(own)}, {bus.Orders, bus.KeyBuildRequest},
		{"", bus.CommandQueue(own)}, {"amq.default", bus.DeclareQueue(other)},
	} {
		if fate := host.publish(t, c.exchange, c.key, nil); !strings.Contains(strings.ToLower(fate), "refused") {
			t.Errorf("publishing %q to %q: %s, want it refused", c.key, c.exchange, fate)
		}
	}
	for _, key := range []string{bus.KeyReport(own), bus.KeyReport(own) + ".command"} {
		if fate := host.publish(t, bus.Answers, key, nil); fate != "confirmed" {
			t.Errorf("publishing %q: %s", key, fate)
		}
	}
	// Names are patterns to the broker: a node's must not match another's.
	if !strings.Contains(bus.NodeAccount("a.b", "x").Read, `a\.b`) {
		t.Error("a node's name is not escaped in its permissions")
	}
}

// What headers can smuggle past the broker, the reader refuses.
func TestForgedAnswersAreNamed(t *testing.T) {
	t.Parallel()
	m := alone(t)
	own, other := m.node(t), m.node(t)
	reports := receive(t, m.controller, bus.Reports)
	builder := intrude(t, m, m.builderURL(t, own), bus.BuilderName(own))
	host := intrude(t, m, m.nodeURL(t, own), bus.NodeName(own))

	if fate := builder.publish(t, bus.Answers, bus.KeyBuildResult, amqp.Table{"CC": []any{bus.KeyReport(other)}}); fate != "confirmed" {
		t.Fatal(fate)
	}
	var forged *bus.ForgedError
	if node, _, err := next(t, reports).Reporter(); !errors.As(err, &forged) {
		t.Errorf("a builder's message counts as a report of %q: %v", node, err)
	}
	if fate := host.publish(t, bus.Answers, bus.KeyReport(own)+".x", amqp.Table{"CC": []any{bus.KeyReport(other)}}); fate != "confirmed" {
		t.Fatal(fate)
	}
	if node, topic, err := next(t, reports).Reporter(); err != nil || node != own || topic != "x" {
		t.Errorf("a node's report counts as %q %q: %v, want it to be the sender's own", node, topic, err)
	}
	nameless := intruder{host.conn, ""}
	if fate := nameless.publish(t, bus.Answers, bus.KeyReport(own), nil); fate != "confirmed" {
		t.Fatal(fate)
	}
	if _, _, err := next(t, reports).Reporter(); !errors.As(err, &forged) {
		t.Errorf("a report without a user is taken: %v", err)
	}
	results := receive(t, m.controller, bus.BuildResults)
	next(t, results) // the builder's own, from above
	if fate := host.publish(t, bus.Answers, bus.KeyReport(own), amqp.Table{"BCC": []any{bus.KeyBuildResult}}); fate != "confirmed" {
		t.Fatal(fate)
	}
	if node, err := next(t, results).Builder(); !errors.As(err, &forged) {
		t.Errorf("a host's message counts as a result of %q: %v", node, err)
	}
}

func TestS1_038_AnswerComesThroughTheMeshExchange(t *testing.T) {
	t.Parallel()
	m := alone(t)
	node := m.node(t)
	results := receive(t, m.controller, bus.BuildResults)
	must(t, bus.Declare(deadline(t), m.controller, bus.NodeTopology("elsewhere")))
	must(t, m.controller.Publish(deadline(t), bus.Message{
		Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: "1", ReplyTo: bus.CommandQueue("elsewhere"),
	}))
	builder := dial(t, m.BrokerInfo, m.builderURL(t, node))
	answer(t, builder, "")
	d := next(t, results)
	if d.Exchange != "mesh" || d.Key != "build.result" || d.CorrelationID != "1" {
		t.Errorf("result came as %+v", d)
	}
	m.untouched(t, "elsewhere", "the answer")
	if from, err := d.Builder(); err != nil || from != node {
		t.Errorf("result is of %q: %v", from, err)
	}
}

// answer is a builder in one sentence: read a request, publish its result, acknowledge.
func answer(t *testing.T, builder *bus.Conn, progress string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- builder.Consume(ctx, bus.Builds, 1, func(ctx context.Context, d bus.Delivery) error {
			if progress != "" {
				err := builder.Publish(ctx, bus.Message{
					Exchange: bus.Answers, Key: bus.KeyBuildProgress(d.CorrelationID), CorrelationID: d.CorrelationID, Body: []byte(progress),
				})
				if err != nil && !errors.Is(err, bus.ErrUnrouted) {
					return bus.Requeue(err)
				}
			}
			err := builder.Publish(ctx, bus.Message{
				Exchange: bus.Answers, Key: bus.KeyBuildResult, CorrelationID: d.CorrelationID, Body: d.Body,
			})
			if err != nil {
				return bus.Requeue(err)
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
}

func TestS1_039_AskerReadsTheCommonKeyThroughItsOwnQueue(t *testing.T) {
	t.Parallel()
	m := alone(t)
	asker := fresh("asker")
	replies, err := bus.NewReplies(deadline(t), m.controller, asker, nil)
	must(t, err)
	run(t, replies)
	answers, stop, err := replies.Ask(deadline(t), "mine")
	must(t, err)
	answer(t, dial(t, m.BrokerInfo, m.builderURL(t, m.node(t))), "half way")
	for _, id := range []string{"other", "mine"} {
		must(t, m.controller.Publish(deadline(t), bus.Message{Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: id, Body: []byte(id)}))
	}
	if d := next(t, answers); d.Key != bus.KeyBuildProgress("mine") || string(d.Body) != "half way" {
		t.Errorf("first %+v, want the progress of mine", d)
	}
	if d := next(t, answers); d.Key != bus.KeyBuildResult || string(d.Body) != "mine" || d.Queue != "reply."+asker || d.ReplyTo != "" {
		t.Errorf("then %+v, want the result of mine", d)
	}
	must(t, stop(deadline(t)))
	if d, open := <-answers; open {
		t.Errorf("there is more: %+v", d)
	}
}

func TestS1_040_EveryAskerReceivesEveryResultAndKeepsItsOwn(t *testing.T) {
	t.Parallel()
	m := alone(t)
	askers := []string{fresh("asker"), fresh("asker")}
	for _, client := range askers {
		must(t, bus.Declare(deadline(t), m.controller, bus.ReplyTopology(client)))
	}
	// Before anybody reads: both queues get both results.
	answer(t, dial(t, m.BrokerInfo, m.builderURL(t, m.node(t))), "")
	for _, client := range askers {
		must(t, m.controller.Publish(deadline(t), bus.Message{
			Exchange: bus.Orders, Key: bus.KeyBuildRequest, CorrelationID: "of " + client, Body: []byte(client),
		}))
	}
	for _, client := range askers {
		eventually(t, func() error {
			state, err := m.controller.Inspect(deadline(t), bus.ReplyQueue(client))
			if err == nil && state.Ready != 2 {
				err = fmt.Errorf("reply queue of %s has %d results, want 2", client, state.Ready)
			}
			return err
		})
	}
	asked := map[string]<-chan bus.Delivery{}
	for _, client := range askers {
		replies, err := bus.NewReplies(deadline(t), m.controller, client, nil)
		must(t, err)
		answers, stop, err := replies.Ask(deadline(t), "of "+client)
		must(t, err)
		defer stop(context.WithoutCancel(t.Context()))
		asked[client] = answers
		run(t, replies)
	}
	for client, answers := range asked {
		if d := next(t, answers); string(d.Body) != client {
			t.Errorf("%s is shown %s", client, d.Body)
		}
		eventually(t, func() error {
			info, err := m.admin.QueueInfo(deadline(t), bus.ReplyQueue(client))
			if err == nil && info.Messages != 0 {
				err = fmt.Errorf("%d messages left", info.Messages)
			}
			return err
		})
		select {
		case d := <-answers:
			t.Errorf("%s is shown %s too", client, d.Body)
		default:
		}
	}
}

func run(t *testing.T, replies *bus.Replies) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- replies.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
}
