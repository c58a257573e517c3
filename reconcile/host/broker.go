package host

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/schema"
)

// followBroker takes declarations from the node's queue and sends reports, until ctx ends. A
// broker that is away changes nothing on the machine: the connection is made again for ever.
func (h *Host) followBroker(ctx context.Context) {
	conn := bus.Dial(ctx, bus.Config{
		URL: h.cfg.Broker.URL, Fingerprints: strings.Fields(h.cfg.Broker.Fingerprint),
		Name: "mesh-host " + h.cfg.Node, Log: h.log,
	})
	defer conn.Close()
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { h.sendReports(ctx, conn) })
	queue := bus.DeclareQueue(h.cfg.Node)
	err := conn.Consume(ctx, queue, 1, func(_ context.Context, d bus.Delivery) error {
		return h.receive(d)
	})
	if err != nil && ctx.Err() == nil {
		h.log.Error("declarations are no longer received", "error", err)
	}
}

// receive acknowledges what was decided upon: accepted, passed over or refused. Only what
// could not be kept on disk comes again.
func (h *Host) receive(d bus.Delivery) error {
	err := h.Accept("declaration", d.Body)
	if err == nil || errors.Is(err, ErrOld) || errors.Is(err, ErrRefused) {
		return nil
	}
	return bus.Requeue(err)
}

// Between two reports there is at least this long, however much changes.
const reportPause = 250 * time.Millisecond

func (h *Host) sendReports(ctx context.Context, conn *bus.Conn) {
	every := time.NewTicker(h.cfg.reportEvery())
	defer every.Stop()
	for {
		if err := h.sendReport(ctx, conn, h.Report(ctx)); err != nil && ctx.Err() == nil {
			h.log.Debug("a report was not taken", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reportPause):
		}
		select {
		case <-ctx.Done():
			return
		case <-h.tell:
		case <-every.C:
		}
	}
}

// sendReport waits until the broker has confirmed, but no longer than a report stays true.
func (h *Host) sendReport(ctx context.Context, conn *bus.Conn, r schema.Report) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.reportEvery())
	defer cancel()
	return conn.Publish(ctx, bus.Message{Exchange: bus.Answers, Key: bus.KeyReport(h.cfg.Node), Type: "report", Body: body})
}
