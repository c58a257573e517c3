package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/mesh-control/mesh/internal/pki"
)

const (
	firstBackoff = 100 * time.Millisecond
	dialTimeout  = 10 * time.Second // TCP, TLS and AMQP handshakes together
	closeTimeout = 2 * time.Second  // a blocked broker does not answer a goodbye
	heartbeat    = 10 * time.Second
)

// link keeps one connection open. Its sessions follow each other; none is used again.
type link struct {
	config Config
	name   string
	log    *slog.Logger
	// up runs on every new session before anybody gets it.
	up func(context.Context, *session) error

	mu      sync.Mutex
	current *session      // nil while there is none
	blocked string        // why the broker takes no messages
	last    string        // why there is no session
	ended   bool          // there will be none
	changed chan struct{} // closed at the next change of the above
}

func newLink(config Config, name string, log *slog.Logger, up func(context.Context, *session) error) *link {
	return &link{config: config, name: name, log: log.With("connection", name), up: up, changed: make(chan struct{})}
}

// update changes the state and wakes whoever waits for it.
func (l *link) update(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) state() (open bool, blocked, last string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current != nil, l.blocked, l.last
}

// session waits for an open connection, and with unblocked for one that takes messages.
func (l *link) session(ctx context.Context, unblocked bool) (*session, error) {
	for {
		l.mu.Lock()
		current, blocked, ended, changed := l.current, l.blocked, l.ended, l.changed
		l.mu.Unlock()
		switch {
		case ended:
			return nil, ErrClosed
		case current != nil && (blocked == "" || !unblocked):
			return current, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if current != nil {
				return nil, fmt.Errorf("the broker takes no messages (%s): %w", blocked, context.Cause(ctx))
			}
			return nil, context.Cause(ctx)
		}
	}
}

// run connects, and connects again after every loss, until ctx ends.
func (l *link) run(ctx context.Context) {
	delay := firstBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := l.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > l.config.MaxBackoff {
			delay = firstBackoff
		}
		l.update(func() { l.current, l.blocked, l.last = nil, "", err.Error() })
		l.log.Warn("no connection to the broker", "error", err, "retry", delay)
		sleep(ctx, delay/2+rand.N(delay/2))
		delay = min(2*delay, l.config.MaxBackoff)
	}
	l.update(func() { l.current, l.blocked, l.ended = nil, "", true })
}

// sleep waits, or less when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// once is one connection from its beginning to its end. The error says why it ended.
func (l *link) once(ctx context.Context) error {
	config, err := l.config.renewed()
	if err != nil {
		return err
	}
	s, err := l.open(ctx, config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer s.close()
	if l.up != nil {
		if err := l.up(ctx, s); err != nil {
			return err
		}
	}
	l.update(func() { l.current, l.last = s, "" })
	l.log.Info("connected to the broker")
	blocking := s.blocking
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.done:
			return s.cause()
		case b, open := <-blocking:
			if !open {
				blocking = nil // done follows
				continue
			}
			l.update(func() {
				l.blocked = ""
				if b.Active {
					l.blocked = b.Reason
				}
			})
			l.log.Warn("the broker's readiness to take messages changed", "blocked", b.Active, "reason", b.Reason)
		}
	}
}

func (l *link) open(ctx context.Context, config Config) (*session, error) {
	var raw net.Conn
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(config.Name + " " + l.name)
	conn, err := amqp.DialConfig(config.URL, amqp.Config{
		Heartbeat:       heartbeat,
		Properties:      properties,
		TLSClientConfig: pki.ClientConfig(config.Fingerprints...),
		Dial: func(network, address string) (net.Conn, error) {
			var dialer net.Dialer
			var err error
			if raw, err = dialer.DialContext(dialCtx, network, address); err != nil {
				return nil, err
			}
			// The library clears the deadline once the handshakes are over.
			return raw, raw.SetDeadline(time.Now().Add(dialTimeout))
		},
	})
	if err != nil {
		if raw != nil {
			raw.Close()
		}
		return nil, explain(err)
	}
	s := &session{
		conn: conn, raw: raw, done: make(chan struct{}), slots: make(chan *publisher, publishers),
		blocking: conn.NotifyBlocked(make(chan amqp.Blocking, 16)),
	}
	for range publishers {
		s.slots <- nil
	}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		if reason := <-closed; reason != nil {
			s.reason = reason
		}
		close(s.done)
	}()
	return s, nil
}

// session is one connection while it lasts.
type session struct {
	conn     *amqp.Connection
	raw      net.Conn
	done     chan struct{} // closed when the connection is gone
	reason   *amqp.Error   // read after done; nil when we closed it
	blocking <-chan amqp.Blocking
	slots    chan *publisher // nil entries are channels not opened yet
	under    sync.WaitGroup  // what is under way on it
}

func (s *session) cause() error {
	if s.reason == nil {
		return errors.New("the connection was closed")
	}
	return explain(s.reason)
}

// close says goodbye for a moment and then hangs up: a blocked or dead broker never answers.
func (s *session) close() {
	if err := s.conn.CloseDeadline(time.Now().Add(closeTimeout)); err != nil && !errors.Is(err, amqp.ErrClosed) {
		s.raw.Close()
	}
	<-s.done
	s.raw.Close()
	s.under.Wait()
}

// do runs work on a channel of its own and closes it. When ctx ends first, the work is left
// to end by itself.
func (s *session) do(ctx context.Context, work func(*amqp.Channel) error) error {
	result := make(chan error, 1)
	s.under.Go(func() {
		channel, err := s.conn.Channel()
		if err != nil {
			result <- err
			return
		}
		result <- work(channel)
		channel.Close()
	})
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// explain puts a broker's refusal into words one can act on.
func explain(err error) error {
	var refusal *amqp.Error
	if !errors.As(err, &refusal) {
		return err
	}
	switch refusal.Code {
	case amqp.AccessRefused:
		return fmt.Errorf("%w: %s", ErrRefused, refusal.Reason)
	case amqp.NotFound:
		return fmt.Errorf("%w: %s", ErrNotFound, refusal.Reason)
	}
	return err
}

// final says whether an error would be the same on another connection: the broker closed the
// channel, and not the connection, because of what was asked.
func final(err error) bool {
	var refusal *amqp.Error
	if errors.As(err, &refusal) {
		switch refusal.Code {
		case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.ContentTooLarge:
			return true
		}
	}
	return errors.Is(err, ErrUnrouted) || errors.Is(err, ErrNacked)
}

// again runs try on one session after another until it succeeds, fails for good, or ctx ends.
func (l *link) again(ctx context.Context, unblocked bool, try func(*session) error) error {
	for {
		s, err := l.session(ctx, unblocked)
		if err != nil {
			return err
		}
		err = try(s)
		if err == nil || final(err) || ctx.Err() != nil {
			return explain(err)
		}
		// A session that failed is about to end; its successor gets the next try. Should it
		// not end, the pause keeps this from spinning.
		pause, cancel := context.WithTimeout(ctx, time.Second)
		select {
		case <-s.done:
		case <-pause.Done():
		}
		cancel()
		l.waitPast(ctx, s)
	}
}

// waitPast waits until an ended session is no longer the current one.
func (l *link) waitPast(ctx context.Context, s *session) {
	select {
	case <-s.done:
	default:
		return
	}
	for {
		l.mu.Lock()
		current, changed := l.current, l.changed
		l.mu.Unlock()
		if current != s {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
