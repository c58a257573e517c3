package bus

import (
	"context"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The exchanges. Both are topic exchanges.
const (
	Orders  = "mesh.orders" // only the controller writes
	Answers = "mesh"        // builders and hosts write
)

// The queues that are not of one node or one client.
const (
	Builds          = "builds"           // read by every builder
	BuildsDead      = "builds.dead"      // requests that failed too often; read by the controller
	BuildsCancelled = "builds.cancelled" // read by nobody: see KeyBuildCancelled
	BuildResults    = "build-results"    // read by the controller
	Reports         = "reports"          // read by the controller
)

// The keys that do not name a node or a build.
const (
	KeyBuildRequest = "build.request" // on Orders
	KeyBuildDead    = "build.dead"    // on Orders, by the broker itself
	KeyBuildResult  = "build.result"  // on Answers
)

// DeliveryLimit is how often a build request is delivered again before it goes to BuildsDead.
const DeliveryLimit = 3

// ReplyExpiry is how long a reply queue outlives its last reader.
const ReplyExpiry = 10 * time.Minute

// KeyBuildProgress is the key of a build's progress, on Answers.
func KeyBuildProgress(id string) string { return "build.progress." + id }

// KeyBuildCancelled is the key, on Answers, under which a builder asks whether a build was
// cancelled. Builders may read nothing but their work, so the answer is whether the question
// finds a queue: the controller binds [BuildsCancelled] to the key of a cancelled build, and
// under any other key the broker hands the question back ([ErrUnrouted]).
func KeyBuildCancelled(id string) string { return KeyBuildProgress(id) + ".cancelled" }

// KeyReport is the key of a node's report, on Answers.
func KeyReport(node string) string { return "report." + node }

// DeclareQueue is where a node's declarations arrive. It is also their key on Orders.
func DeclareQueue(node string) string { return "node." + node + ".declare" }

// CommandQueue is where a node's commands arrive. It is also their key on Orders.
func CommandQueue(node string) string { return "node." + node + ".command" }

// ReplyQueue is where one asker's answers arrive.
func ReplyQueue(client string) string { return "reply." + client }

// Topology is a set of exchanges and queues. Declaring one is idempotent.
type Topology struct {
	Exchanges []string
	Queues    []Queue
}

// Queue is a durable quorum queue with its bindings.
type Queue struct {
	Name     string
	Bindings []Binding
	Args     map[string]any // beside the queue type
}

// Binding brings messages with a key, which may be a pattern, from an exchange.
type Binding struct{ Exchange, Key string }

// MeshTopology is what the mesh has once.
func MeshTopology() Topology {
	return Topology{
		Exchanges: []string{Orders, Answers},
		Queues: []Queue{
			{Name: BuildsDead, Bindings: []Binding{{Orders, KeyBuildDead}}},
			{Name: Builds, Bindings: []Binding{{Orders, KeyBuildRequest}}, Args: map[string]any{
				"x-delivery-limit":          int64(DeliveryLimit),
				"x-dead-letter-exchange":    Orders,
				"x-dead-letter-routing-key": KeyBuildDead,
				// A dead request leaves the queue only when the other has confirmed it.
				"x-dead-letter-strategy": "at-least-once",
				"x-overflow":             "reject-publish",
			}},
			// What lands here has been answered by landing.
			{Name: BuildsCancelled, Args: map[string]any{"x-max-length": int64(1), "x-overflow": "drop-head"}},
			{Name: BuildResults, Bindings: []Binding{{Answers, KeyBuildResult}}},
			{Name: Reports, Bindings: []Binding{{Answers, "report.#"}}},
		},
	}
}

// NodeTopology is what the mesh has once for each node. Of declarations only the newest is kept.
func NodeTopology(node string) Topology {
	return Topology{Queues: []Queue{
		{Name: DeclareQueue(node), Bindings: []Binding{{Orders, DeclareQueue(node)}}, Args: map[string]any{
			"x-max-length": int64(1), "x-overflow": "drop-head",
		}},
		{Name: CommandQueue(node), Bindings: []Binding{{Orders, CommandQueue(node)}}},
	}}
}

// ReplyTopology is the queue of one asker. It expires, since a quorum queue is neither
// exclusive nor deleted with its reader. What a build says on its way is bound by [Conn.Bind].
func ReplyTopology(client string) Topology {
	return Topology{Queues: []Queue{{
		Name: ReplyQueue(client), Bindings: []Binding{{Answers, KeyBuildResult}},
		Args: map[string]any{"x-expires": ReplyExpiry.Milliseconds()},
	}}}
}

// Declare declares a topology, now and again after every loss of the connection.
func Declare(ctx context.Context, c *Conn, t Topology) error {
	if err := c.do(ctx, t.declare); err != nil {
		return fmt.Errorf("declare queues: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(t)
	c.topologies = append(c.topologies, t)
	return nil
}

// Undeclare deletes a topology's queues with what is in them. Its exchanges stay.
func Undeclare(ctx context.Context, c *Conn, t Topology) error {
	c.mu.Lock()
	c.forget(t)
	c.mu.Unlock()
	for _, q := range t.Queues {
		err := c.do(ctx, func(channel *amqp.Channel) error {
			_, err := channel.QueueDelete(q.Name, false, false, false)
			return err
		})
		if err != nil {
			return fmt.Errorf("delete queue %s: %w", q.Name, err)
		}
	}
	return nil
}

// forget drops an earlier declaration of the same queues.
func (c *Conn) forget(t Topology) {
	names := func(t Topology) []string {
		var names []string
		for _, q := range t.Queues {
			names = append(names, q.Name)
		}
		return names
	}
	c.topologies = slices.DeleteFunc(c.topologies, func(other Topology) bool {
		return slices.Equal(names(other), names(t))
	})
}

// declareAgain runs on both connections, since either may be back first.
func (c *Conn) declareAgain(ctx context.Context, s *session) error {
	c.mu.Lock()
	topologies := slices.Clone(c.topologies)
	c.mu.Unlock()
	for _, t := range topologies {
		if err := s.do(ctx, t.declare); err != nil {
			return fmt.Errorf("declare queues again: %w", explain(err))
		}
	}
	return nil
}

func (t Topology) declare(channel *amqp.Channel) error {
	for _, name := range t.Exchanges {
		if err := channel.ExchangeDeclare(name, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
			return err
		}
	}
	for _, q := range t.Queues {
		args := amqp.Table{"x-queue-type": "quorum"}
		for key, value := range q.Args {
			args[key] = value
		}
		if _, err := channel.QueueDeclare(q.Name, true, false, false, false, args); err != nil {
			return err
		}
		for _, b := range q.Bindings {
			if err := channel.QueueBind(q.Name, b.Key, b.Exchange, false, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// Bind brings further messages into a queue until Unbind. It is not remembered: after a
// broker lost its data, bind again.
func (c *Conn) Bind(ctx context.Context, queue string, b Binding) error {
	err := c.do(ctx, func(channel *amqp.Channel) error {
		return channel.QueueBind(queue, b.Key, b.Exchange, false, nil)
	})
	if err != nil {
		return fmt.Errorf("bind %s to %s: %w", queue, b.Key, err)
	}
	return nil
}

// Unbind ends what Bind began.
func (c *Conn) Unbind(ctx context.Context, queue string, b Binding) error {
	err := c.do(ctx, func(channel *amqp.Channel) error {
		return channel.QueueUnbind(queue, b.Key, b.Exchange, nil)
	})
	if err != nil {
		return fmt.Errorf("unbind %s from %s: %w", queue, b.Key, err)
	}
	return nil
}

// QueueState is a queue as the broker sees it at this moment.
type QueueState struct {
	Ready     int // messages waiting for a reader, those delivered and not acknowledged left out
	Consumers int
}

// Inspect asks for a queue's state. ErrNotFound when there is none of that name.
func (c *Conn) Inspect(ctx context.Context, queue string) (QueueState, error) {
	var state QueueState
	err := c.do(ctx, func(channel *amqp.Channel) error {
		q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		state = QueueState{Ready: q.Messages, Consumers: q.Consumers}
		return err
	})
	if err != nil {
		return QueueState{}, fmt.Errorf("inspect queue %s: %w", queue, err)
	}
	return state, nil
}

// do runs an idempotent request, on the connection that an alarm does not block.
func (c *Conn) do(ctx context.Context, work func(*amqp.Channel) error) error {
	return c.consuming.again(ctx, false, func(s *session) error { return s.do(ctx, work) })
}
