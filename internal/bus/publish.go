package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// publishers is how many messages may be under way at once on one connection.
const publishers = 32

// Message is what is published. Its Body is JSON.
type Message struct {
	Exchange      string
	Key           string
	CorrelationID string
	ReplyTo       string
	Type          string
	MessageID     string // "" is a fresh one
	Body          []byte
	Headers       map[string]any
}

// Publish sends a message and returns once the broker has confirmed it and some queue has
// it. A lost connection is waited out and the message sent again, until ctx ends; an error
// that would be the same again is returned: ErrUnrouted, ErrRefused, ErrNotFound, ErrNacked,
// ErrTooLarge, ErrClosed. When ctx ends first, whether the message was taken is not known.
func (c *Conn) Publish(ctx context.Context, m Message) error {
	if len(m.Body) > MaxBody {
		return fmt.Errorf("publish %s to %s: %w: %d bytes, %d allowed", m.Key, m.Exchange, ErrTooLarge, len(m.Body), MaxBody)
	}
	if m.MessageID == "" {
		m.MessageID = rand.Text()
	}
	publishing := amqp.Publishing{
		Headers: amqp.Table(m.Headers), ContentType: "application/json", DeliveryMode: amqp.Persistent,
		CorrelationId: m.CorrelationID, ReplyTo: m.ReplyTo, MessageId: m.MessageID, Type: m.Type,
		Timestamp: time.Now(), UserId: c.user, AppId: c.config.Name, Body: m.Body,
	}
	err := c.publishing.again(ctx, true, func(s *session) error {
		return s.publish(ctx, m.Exchange, m.Key, publishing)
	})
	if err != nil {
		return fmt.Errorf("publish %s to %s: %w", m.Key, m.Exchange, err)
	}
	return nil
}

// publisher is a channel that carries one message at a time, so that a returned message can
// only be the one just sent.
type publisher struct {
	channel  *amqp.Channel
	returned chan amqp.Return
	closed   chan *amqp.Error
}

// publish takes a free channel and gives it back once the message's fate is known, even when
// ctx ended long before.
func (s *session) publish(ctx context.Context, exchange, key string, message amqp.Publishing) error {
	var slot *publisher
	select {
	case slot = <-s.slots:
	case <-s.done:
		return s.cause()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	result := make(chan error, 1)
	s.under.Go(func() {
		var err error
		if slot == nil {
			slot, err = newPublisher(s.conn)
		}
		if err == nil {
			err = slot.send(exchange, key, message)
		}
		if slot != nil && slot.channel.IsClosed() {
			slot = nil
		}
		s.slots <- slot
		result <- err
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func newPublisher(conn *amqp.Connection) (*publisher, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	p := &publisher{
		channel:  channel,
		returned: channel.NotifyReturn(make(chan amqp.Return, 1)),
		closed:   channel.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	return p, nil
}

// send publishes and waits for the broker's word. The broker returns an unroutable message
// before it confirms it.
func (p *publisher) send(exchange, key string, message amqp.Publishing) error {
	confirmation, err := p.channel.PublishWithDeferredConfirm(exchange, key, true, false, message)
	if err != nil {
		return err
	}
	if !confirmation.Wait() {
		if p.channel.IsClosed() {
			if reason := <-p.closed; reason != nil {
				return reason
			}
			return errors.New("the connection was lost before the message was confirmed")
		}
		return ErrNacked
	}
	select {
	case r, open := <-p.returned:
		if open {
			return fmt.Errorf("%w: %s", ErrUnrouted, r.ReplyText)
		}
	default:
	}
	return nil
}
