package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/source/gitserve"
)

// health answers /healthz while the process lives, /readyz while the database answers it.
type health struct {
	registry *prometheus.Registry
	service  atomic.Pointer[catalogue.Service]
}

func (h *health) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch service := h.service.Load(); {
		case service == nil || !service.Connected():
			http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		case service.Leading():
			fmt.Fprintln(w, "ok: leading")
		default:
			fmt.Fprintln(w, "ok: waiting to lead")
		}
	})
	return mux
}

func served(root string, log *slog.Logger) http.Handler {
	return &gitserve.Handler{Root: root, Log: log}
}

// hooksConnections bounds what may be connected to the webhooks' address, which strangers reach.
const hooksConnections = 256

// listenHooks takes notices, which are answered with 503 until the database is open.
func listenHooks(ctx context.Context, group *errgroup.Group, log *slog.Logger, address string, health *health) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for hooks: %w", err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service := health.service.Load()
		if service == nil {
			w.Header().Set("Retry-After", "5")
			http.Error(w, "the catalogue has not opened its database yet; send it again", http.StatusServiceUnavailable)
			return
		}
		service.Hooks().ServeHTTP(w, r)
	})
	server := newServer(log, handler)
	server.WriteTimeout, server.MaxHeaderBytes = 30*time.Second, 16<<10
	serve(ctx, group, log, "hooks", netutil.LimitListener(listener, hooksConnections), server)
	return nil
}

// listen serves handler on address until ctx ends, then gives requests under way a moment.
func listen(ctx context.Context, group *errgroup.Group, log *slog.Logger, what, address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", what, err)
	}
	serve(ctx, group, log, what, listener, newServer(log, handler))
	return nil
}

func newServer(log *slog.Logger, handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

func serve(ctx context.Context, group *errgroup.Group, log *slog.Logger, what string, listener net.Listener, server *http.Server) {
	log.Info("listening", "what", what, "address", listener.Addr().String())
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", what, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			_ = server.Close()
		}
		return nil
	})
}
