// Package bus is the mesh's use of its broker: what travels, between whom, and who may.
//
// # Topology
//
// Two exchanges, because permission is per exchange and, before RabbitMQ 4.0, a CC or BCC
// header walks around topic permissions: what only the controller may say goes through
// [Orders], where nobody else can write; answers and reports go through [Answers]. Every
// queue is a quorum queue and is declared by the controller beforehand, so builders and
// hosts configure nothing. [MeshTopology], [NodeTopology] and [ReplyTopology] are the whole
// of it, and [BuilderAccount], [NodeAccount] and [ControllerAccount] are who may do what.
//
// # Promises
//
//   - [Conn.Publish] returns nil only when the broker confirmed the message and routed it to
//     at least one queue. A connection lost in between is no answer: the message is sent
//     again, so a consumer may see it twice, under one MessageID.
//   - [Conn.Consume] acknowledges a message after its handler returned, never before. A
//     handler's context ends with the channel its delivery came by, for then the broker has
//     given the message to somebody else already.
//   - Connections come back after any loss, with back-off up to a ceiling; what was declared
//     through them is declared again first. Ready is false meanwhile.
//   - Publishing and consuming use separate connections, since an alarm of the broker blocks
//     a publishing one whole, acknowledgements included. Blocked is a state that is shown,
//     and every wait has a context.
//   - The user name stands on every message and the broker checks it. Whoever consumes checks
//     it against the key and the node: [Delivery.Builder], [Delivery.Reporter].
//
// Rules of the client library kept here: its own recovery stays off, because after it an
// acknowledgement can hit another message; a channel is used by one goroutine at a time and
// never again after an error; notification channels are buffered.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"
)

// MaxBody is the largest message in bytes. What may be larger travels by digest.
const MaxBody = 16 << 20

// DefaultMaxBackoff is the longest pause between two attempts to connect.
const DefaultMaxBackoff = 15 * time.Second

// The ways in which a message is not delivered.
var (
	// ErrUnrouted: the broker took the message and no queue wanted it.
	ErrUnrouted = errors.New("no queue is bound for this key")
	// ErrRefused: the account may not do this.
	ErrRefused = errors.New("the broker refused: this account may not do that")
	// ErrNotFound: there is no such exchange or queue.
	ErrNotFound = errors.New("the broker knows no such exchange or queue")
	// ErrNacked: the broker could not take responsibility for the message.
	ErrNacked = errors.New("the broker did not take the message")
	// ErrTooLarge: the body is above MaxBody.
	ErrTooLarge = errors.New("the message is too large")
	// ErrClosed: the connection was closed by its owner.
	ErrClosed = errors.New("the connection to the broker is closed")
)

// Config says which broker, as whom, and how it is known.
type Config struct {
	URL          string   // amqps://user:password@host:port/
	Fingerprints []string // the broker's pins, the current and the next
	Name         string   // shown by the broker beside the connection
	Log          *slog.Logger
	MaxBackoff   time.Duration // zero is DefaultMaxBackoff
	// Renewed, where given, is asked before each attempt to connect for the URL and the pins
	// as they are by now: a credential may have been replaced under a program that runs. The
	// account stays the same one.
	Renewed func() (url string, fingerprints []string, err error)
}

// renewed is the configuration for the next attempt to connect.
func (c Config) renewed() (Config, error) {
	if c.Renewed == nil {
		return c, c.Check()
	}
	var err error
	if c.URL, c.Fingerprints, err = c.Renewed(); err != nil {
		return c, err
	}
	return c, c.Check()
}

// Check says what is wrong with a configuration, without a password in the text.
func (c Config) Check() error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return errors.New("broker URL is not a URL")
	case u.Scheme != "amqps":
		return fmt.Errorf("broker URL has scheme %q: only amqps is used", u.Scheme)
	case u.Hostname() == "":
		return errors.New("broker URL names no host")
	case u.User == nil || u.User.Username() == "":
		return errors.New("broker URL names no user")
	case len(c.Fingerprints) == 0:
		return errors.New("no fingerprint of the broker is given")
	}
	return nil
}

// Conn is a lasting pair of connections to the broker. Its methods may be used from many
// goroutines.
type Conn struct {
	config     Config
	user       string
	log        *slog.Logger
	publishing *link
	consuming  *link
	cancel     context.CancelFunc
	done       sync.WaitGroup

	mu            sync.Mutex
	topologies    []Topology
	subscriptions map[*subscription]bool // true while subscribed
}

// Dial returns at once and connects in the background, for ever, until ctx ends or Close.
// A configuration that cannot work shows as LastError in State; see [Config.Check].
func Dial(ctx context.Context, config Config) *Conn {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.MaxBackoff == 0 {
		config.MaxBackoff = DefaultMaxBackoff
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &Conn{config: config, log: config.Log, cancel: cancel, subscriptions: map[*subscription]bool{}}
	if u, err := url.Parse(config.URL); err == nil && u.User != nil {
		c.user = u.User.Username()
		c.log = c.log.With("broker", u.Host)
	}
	c.publishing = newLink(config, "publish", c.log, c.declareAgain)
	c.consuming = newLink(config, "consume", c.log, c.declareAgain)
	for _, l := range []*link{c.publishing, c.consuming} {
		c.done.Go(func() { l.run(ctx) })
	}
	return c
}

// Close ends both connections and everything under way on them. Messages that were not
// acknowledged go back to their queues.
func (c *Conn) Close() {
	c.cancel()
	c.done.Wait()
}

// State is what a program shows of its connection.
type State struct {
	Publishing bool   // the publishing connection is open
	Consuming  bool   // the consuming connection is open
	Waiting    int    // consumers that are not subscribed
	Blocked    string // why the broker takes no messages, "" when it does
	LastError  string // of connecting, "" when connected
}

// State is the connection's state now.
func (c *Conn) State() State {
	var s State
	var publishError, consumeError string
	s.Publishing, s.Blocked, publishError = c.publishing.state()
	s.Consuming, _, consumeError = c.consuming.state()
	s.LastError = publishError
	if s.LastError == "" {
		s.LastError = consumeError
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, subscribed := range c.subscriptions {
		if !subscribed {
			s.Waiting++
		}
	}
	return s
}

// Ready says whether messages can be published and every consumer is subscribed.
func (c *Conn) Ready() bool {
	s := c.State()
	return s.Publishing && s.Consuming && s.Waiting == 0 && s.Blocked == ""
}

// WaitReady returns when both connections are open and the broker takes messages.
func (c *Conn) WaitReady(ctx context.Context) error {
	for _, l := range []*link{c.consuming, c.publishing} {
		if _, err := l.session(ctx, true); err != nil {
			if _, _, last := l.state(); last != "" {
				return fmt.Errorf("connect to broker: %w: %s", err, last)
			}
			return fmt.Errorf("connect to broker: %w", err)
		}
	}
	return nil
}
