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

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/catalogue/source/gitserve"
	"github.com/mesh-control/mesh/internal/listen"
)

// health knows of the service once its database is open.
type health struct {
	service atomic.Pointer[catalogue.Service]
}

// ready says whether the database answers the service.
func (h *health) ready() (string, error) {
	switch service := h.service.Load(); {
	case service == nil || !service.Connected():
		return "", errors.New("the database does not answer")
	case service.Leading():
		return "leading", nil
	default:
		return "waiting to lead", nil
	}
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
	server := listen.NewServer(log, handler)
	server.WriteTimeout, server.MaxHeaderBytes = 30*time.Second, 16<<10
	listen.Serve(ctx, group, log, "hooks", netutil.LimitListener(listener, hooksConnections), server)
	return nil
}
