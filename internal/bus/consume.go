package bus

import (
	"context"
	"errors"
	"fmt"
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
// for errors see Requeue and Reject, any other error counts as Requeue. The context given to
// handle ends when the delivery's channel closes: the message is somebody else's then.
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
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case d, open := <-deliveries:
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !open:
				return errors.New("the broker cancelled the subscription")
			}
			if err := c.settle(d, handle(ctx, delivery(sub.queue, d))); err != nil {
				return err
			}
		}
	}
}

// settle tells the broker what became of a message.
func (c *Conn) settle(d amqp.Delivery, err error) error {
	if err == nil {
		return d.Ack(false)
	}
	requeue := true
	var v *verdict
	if errors.As(err, &v) {
		requeue = v.requeue
	}
	c.log.Warn("message not handled", "key", d.RoutingKey, "message", d.MessageId, "correlation", d.CorrelationId,
		"requeue", requeue, "error", err)
	return d.Nack(false, requeue)
}

func delivery(queue string, d amqp.Delivery) Delivery {
	attempts, _ := d.Headers["x-delivery-count"].(int64)
	return Delivery{
		Queue: queue, Exchange: d.Exchange, Key: d.RoutingKey, UserID: d.UserId, CorrelationID: d.CorrelationId,
		ReplyTo: d.ReplyTo, Type: d.Type, MessageID: d.MessageId, Body: d.Body, Headers: d.Headers,
		Timestamp: d.Timestamp, Redelivered: d.Redelivered, Attempts: attempts,
	}
}
