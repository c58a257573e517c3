package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// DefaultIdle is how long a transfer may move nothing before it is given up.
const DefaultIdle = time.Minute

// ErrStalled ends a transfer that moved no byte for the idle time.
var ErrStalled = errors.New("transfer stalled")

// IdleTimeout gives a transport that ends a transfer which moves no byte, up or down, for the
// idle time. However long a large blob takes, it may take; a peer that has gone quiet does not
// hold anybody until a deadline. The wait for the answer's first line is next's own to bound.
func IdleTimeout(next http.RoundTripper, idle time.Duration) http.RoundTripper {
	return &idleTransport{next: next, idle: idle}
}

type idleTransport struct {
	next http.RoundTripper
	idle time.Duration
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (t *idleTransport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

func (t *idleTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	watch := &idleWatch{ctx: ctx, cancel: cancel, idle: t.idle}
	watch.timer = time.AfterFunc(t.idle, func() { cancel(fmt.Errorf("%w: nothing moved for %s", ErrStalled, t.idle)) })
	watch.timer.Stop()
	sent := r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		sent.Body = &idleUpload{idleWatch: watch, body: r.Body}
	}
	response, err := t.next.RoundTrip(sent)
	if err != nil {
		err = watch.cause(err)
		watch.end()
		return nil, err
	}
	response.Body = &idleDownload{idleWatch: watch, body: response.Body}
	return response, nil
}

// idleWatch is the clock of one exchange.
type idleWatch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	idle   time.Duration
}

func (w *idleWatch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// cause tells the stall apart from an end that the caller wanted, which looks the same below.
func (w *idleWatch) cause(err error) error {
	if stalled := context.Cause(w.ctx); errors.Is(stalled, ErrStalled) {
		return stalled
	}
	return err
}

// idleUpload runs the clock from one piece the connection has taken to the next, until the
// last: what the server does with the whole is its own time.
type idleUpload struct {
	*idleWatch
	body io.ReadCloser
}

func (u *idleUpload) Read(p []byte) (int, error) {
	u.timer.Stop() // the source's time is not the connection's
	n, err := u.body.Read(p)
	if err == nil {
		u.timer.Reset(u.idle)
	}
	return n, err
}

func (u *idleUpload) Close() error {
	u.timer.Stop()
	return u.body.Close()
}

// idleDownload runs the clock while bytes are waited for, not while they are used.
type idleDownload struct {
	*idleWatch
	body io.ReadCloser
}

func (d *idleDownload) Read(p []byte) (int, error) {
	d.timer.Reset(d.idle)
	n, err := d.body.Read(p)
	d.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = d.cause(err)
	}
	return n, err
}

func (d *idleDownload) Close() error {
	err := d.body.Close()
	d.end()
	return err
}
