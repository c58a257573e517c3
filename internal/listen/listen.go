// Package listen serves HTTP for programs: their servers with one set of time limits, and what
// an operator's tools ask every program for.
package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// grace is what requests under way get when a program ends.
const grace = 5 * time.Second

// Listen serves handler on address, host:port, until ctx ends, then gives requests under way a
// moment. What is said in logs and errors. It returns once the address is taken; what goes
// wrong later ends the group.
func Listen(ctx context.Context, group *errgroup.Group, log *slog.Logger, what, address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", what, err)
	}
	Serve(ctx, group, log, what, listener, NewServer(log, handler))
	return nil
}

// NewServer is a server with the limits that all have.
func NewServer(log *slog.Logger, handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// Serve is [Listen] with a listener and a server of the caller's.
func Serve(ctx context.Context, group *errgroup.Group, log *slog.Logger, what string, listener net.Listener, server *http.Server) {
	log.Info("listening", "what", what, "address", listener.Addr().String())
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", what, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if err := server.Shutdown(ending); err != nil {
			_ = server.Close()
		}
		return nil
	})
}

// NewMetrics is a registry with what every Go program has.
func NewMetrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Health serves /metrics, /healthz, which answers 200 while the process lives, and /readyz:
// 200 and what ready says, or 503 and its error.
func Health(metrics prometheus.Gatherer, ready func() (string, error)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		state, err := ready()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok:", state)
	})
	return mux
}
