package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Delivery is a message as it arrived.
type Delivery struct {
	Queue         string
	Exchange      string
	Key           string // as published; a CC header does not show here
	UserID        string // who sent it, checked by the broker; "" when the sender said nothing
	CorrelationID string
	ReplyTo       string
	Type          string
	MessageID     string
	Body          []byte
	Headers       map[string]any
	Timestamp     time.Time
	Redelivered   bool
	// Attempts counts deliveries that were not acknowledged before this one.
	Attempts int64
}

// Requeue says that the message is to be delivered again. A queue with a delivery limit
// dead-letters it in the end.
func Requeue(err error) error { return &verdict{err: err, requeue: true} }

// Reject says that the message can never be handled. It is dead-lettered where the queue
// says so, and dropped elsewhere.
func Reject(err error) error { return &verdict{err: err} }

type verdict struct {
	err     error
	requeue bool
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// subscription is one call of Consume.
type subscription struct{ queue string }

// Consume hands the queue's messages to handle, one after another, until ctx ends; prefetch
// is how many the broker sends ahead. The message is acknowledged when handle returns nil;
// for errors see Requeue and Reject, any other error counts as Requeue. A message to be
// delivered again is given back after a pause that doubles from one delivery to the next;
// others are handled meanwhile, as many as prefetch leaves. The context given to handle ends
// when the delivery's channel closes: the message is somebody else's then.
//
// After any loss, also of the queue itself or of the right to read it, it subscribes again
// with back-off. It returns nil when ctx ended and ErrClosed when the connection was closed.
func (c *Conn) Consume(ctx context.Context, queue string, prefetch int, handle func(context.Context, Delivery) error) error {
	sub := &subscription{queue: queue}
	c.mark(sub, false)
	defer func() {
		c.mu.Lock()
		delete(c.subscriptions, sub)
		c.mu.Unlock()
	}()
	delay := firstBackoff
	for {
		s, err := c.consuming.session(ctx, false)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("consume %s: %w", queue, err)
		}
		began := time.Now()
		err = c.subscribe(ctx, s, sub, prefetch, handle)
		c.mark(sub, false)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > c.config.MaxBackoff {
			delay = firstBackoff
		}
		c.log.Warn("subscription ended", "queue", queue, "error", explain(err), "retry", delay)
		sleep(ctx, delay)
		delay = min(2*delay, c.config.MaxBackoff)
		c.consuming.waitPast(ctx, s)
	}
}

func (c *Conn) mark(sub *subscription, subscribed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscriptions[sub] = subscribed
}

// subscribe is one subscription from its beginning to its end.
func (c *Conn) subscribe(ctx context.Context, s *session, sub *subscription, prefetch int, handle func(context.Context, Delivery) error) error {
	s.under.Add(1)
	defer s.under.Done()
	channel, err := s.conn.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	s.under.Go(func() {
		if reason := <-closed; reason != nil {
			cancel(fmt.Errorf("the delivery's channel closed: %w", reason))
		} else {
			cancel(errors.New("the delivery's channel closed"))
		}
	})
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(sub.queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	c.mark(sub, true)
	var held held
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-held.due():
			if err := held.giveBack(time.Now()); err != nil {
				return err
			}
		case d, open := <-deliveries:
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !open:
				return errors.New("the broker cancelled the subscription")
			}
			arrived := delivery(sub.queue, d)
			if again, err := c.settle(d, handle(ctx, arrived)); err != nil {
				return err
			} else if again {
				held.keep(d, time.Now().Add(c.pause(arrived.Attempts)))
			}
		}
	}
}

// settle tells the broker what became of a message, or says that it is to be delivered again.
func (c *Conn) settle(d amqp.Delivery, err error) (again bool, _ error) {
	if err == nil {
		return false, d.Ack(false)
	}
	again = true
	var v *verdict
	if errors.As(err, &v) {
		again = v.requeue
	}
	c.log.Warn("message not handled", "key", d.RoutingKey, "message", d.MessageId, "correlation", d.CorrelationId,
		"requeue", again, "error", err)
	if again {
		return true, nil
	}
	return false, d.Nack(false, false)
}

// pause is how long a message is kept before it is given back, after so many deliveries that
// came to nothing. What failed, a database that is away most of all, is rarely mended in the
// millisecond it takes a broker to deliver again.
func (c *Conn) pause(attempts int64) time.Duration {
	pause := firstBackoff
	for ; attempts > 0 && pause < c.config.MaxBackoff; attempts-- {
		pause *= 2
	}
	return min(pause, c.config.MaxBackoff)
}

// held are messages that are given back later. When the channel closes before, the broker
// takes them back by itself. It belongs to one goroutine.
type held struct {
	messages []heldMessage
	timer    *time.Timer
}

type heldMessage struct {
	delivery amqp.Delivery
	until    time.Time
}

func (h *held) keep(d amqp.Delivery, until time.Time) {
	h.messages = append(h.messages, heldMessage{d, until})
	h.rearm()
}

// due receives when a pause is over, and never while nothing is held.
func (h *held) due() <-chan time.Time {
	if h.timer == nil {
		return nil
	}
	return h.timer.C
}

func (h *held) giveBack(now time.Time) error {
	var kept []heldMessage
	for _, m := range h.messages {
		if m.until.After(now) {
			kept = append(kept, m)
		} else if err := m.delivery.Nack(false, true); err != nil {
			return err
		}
	}
	h.messages = kept
	h.rearm()
	return nil
}

// rearm sets the timer to the first pause that ends.
func (h *held) rearm() {
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if len(h.messages) == 0 {
		return
	}
	first := slices.MinFunc(h.messages, func(a, b heldMessage) int { return a.until.Compare(b.until) })
	h.timer = time.NewTimer(time.Until(first.until))
}

func delivery(queue string, d amqp.Delivery) Delivery {
	attempts, _ := d.Headers["x-delivery-count"].(int64)
	return Delivery{
		Queue: queue, Exchange: d.Exchange, Key: d.RoutingKey, UserID: d.UserId, CorrelationID: d.CorrelationId,
		ReplyTo: d.ReplyTo, Type: d.Type, MessageID: d.MessageId, Body: d.Body, Headers: d.Headers,
		Timestamp: d.Timestamp, Redelivered: d.Redelivered, Attempts: attempts,
	}
}
