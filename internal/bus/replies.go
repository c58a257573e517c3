package bus

import (
	"context"
	"sync"
)

// replyBuffer is how many messages of one build may wait for whoever asked.
const replyBuffer = 1024

// Replies is one asker's reply queue. Every asker is sent every result; Replies sorts out
// by correlation who asked for what, and drops the rest.
type Replies struct {
	conn   *Conn
	client string
	refuse func(Delivery, error)

	mu   sync.Mutex
	asks map[string]chan Delivery
}

// NewReplies declares the reply queue of client. refuse, which may be nil, is told of every
// answer that no builder sent.
func NewReplies(ctx context.Context, conn *Conn, client string, refuse func(Delivery, error)) (*Replies, error) {
	if err := Declare(ctx, conn, ReplyTopology(client)); err != nil {
		return nil, err
	}
	return &Replies{conn: conn, client: client, refuse: refuse, asks: map[string]chan Delivery{}}, nil
}

// Run reads the queue until ctx ends.
func (r *Replies) Run(ctx context.Context) error {
	return r.conn.Consume(ctx, ReplyQueue(r.client), 64, func(_ context.Context, d Delivery) error {
		if _, err := d.Builder(); err != nil {
			if r.refuse != nil {
				r.refuse(d, err)
			}
			return nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		ask, ok := r.asks[d.CorrelationID]
		if !ok {
			return nil
		}
		for {
			select {
			case ask <- d:
				return nil
			default:
			}
			select { // who asked is slow: the result matters more than old progress
			case <-ask:
			default:
			}
		}
	})
}

// Ask listens for what is said of a build: its progress, and its result. Call it before the
// request is published, and stop when done. The channel is closed by stop.
func (r *Replies) Ask(ctx context.Context, id string) (answers <-chan Delivery, stop func(context.Context) error, err error) {
	progress := Binding{Answers, KeyBuildProgress(id)}
	if err := r.conn.Bind(ctx, ReplyQueue(r.client), progress); err != nil {
		return nil, nil, err
	}
	ask := make(chan Delivery, replyBuffer)
	r.mu.Lock()
	r.asks[id] = ask
	r.mu.Unlock()
	var once sync.Once
	return ask, func(ctx context.Context) error {
		var err error
		once.Do(func() {
			r.mu.Lock()
			delete(r.asks, id)
			close(ask)
			r.mu.Unlock()
			err = r.conn.Unbind(ctx, ReplyQueue(r.client), progress)
		})
		return err
	}, nil
}
