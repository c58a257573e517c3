package reconcile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/delivery"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
)

// Controller is one controller process.
type Controller struct {
	Host   *extension.Host
	config Config
	log    *slog.Logger
	pool   *store.Pool
	bus    *bus.Conn
	server *http.Server
}

// shutdown is how long calls under way may still take when the controller ends.
const shutdown = 15 * time.Second

// New opens the database, waiting for it until ctx ends, and registers the extensions. The
// caller closes what it gets.
func New(ctx context.Context, config Config, log *slog.Logger) (*Controller, error) {
	pool, err := store.WaitOpen(ctx, config.Database)
	if err != nil {
		return nil, err
	}
	c := &Controller{config: config, log: log, pool: pool}
	broker := config.Broker
	broker.Log = log
	c.bus = bus.Dial(context.WithoutCancel(ctx), broker)
	if c.Host, err = c.register(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Controller) register() (*extension.Host, error) {
	config, builtIn, keeper := c.config, c.config.builtIn(), c.config.keeper()
	id := "controller-" + strings.ToLower(rand.Text()[:12])
	stock := inventory.New(inventory.Config{Bus: c.bus, Admin: config.Admin, BuiltIn: builtIn, Log: c.log})
	built := builds.New(builds.Config{
		Bus: c.bus, Admin: config.Admin, Secrets: keeper, Client: id, Toolchains: config.toolchains(),
		BrokerAddress: config.brokerAddress(), Fingerprint: strings.Join(config.Broker.Fingerprints, " "),
		Upstreams: config.upstreams(), UpstreamInterval: config.UpstreamInterval, Log: c.log,
	})
	delivered := delivery.New(delivery.Config{
		Bus: c.bus, Secrets: keeper, BuiltIn: builtIn, Key: config.DeclarationKey, Epoch: Epoch, Log: c.log,
	})
	glance := &glance{mesh: config.Mesh, version: config.Version, builds: built, delivery: delivered, registry: config.registryClient()}
	return extension.New(extension.Config{
		Store: c.pool, Log: c.log, ID: id, Mesh: config.Mesh, Version: config.Version, Roles: config.Roles,
		Extensions: []extension.Extension{
			stock.Extension(), keeper.Extension(), built.Extension(), delivered.Extension(), glance.Extension(),
		},
	})
}

// Start migrates and starts the extensions and their workers.
func (c *Controller) Start(ctx context.Context) error { return c.Host.Initialize(ctx) }

// Handler answers the methods to operators.
func (c *Controller) Handler() http.Handler {
	return c.Host.Handler(extension.Operators{Store: c.pool})
}

// Serve starts the controller and answers HTTPS on every address of the configuration until
// ctx ends; then it lets calls under way end, and stops.
func (c *Controller) Serve(ctx context.Context) error {
	tls, err := pki.ServerConfig(c.config.Certificate, c.config.Key)
	if err != nil {
		return err
	}
	c.server = &http.Server{Handler: c.Handler(), TLSConfig: tls, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	failed := make(chan error, len(c.config.Listen))
	var serving sync.WaitGroup
	for _, address := range c.config.Listen {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return errors.Join(fmt.Errorf("listen on %s: %w", address, err), c.server.Close())
		}
		c.log.Info("listening", "address", listener.Addr().String())
		serving.Go(func() {
			if err := c.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	if err = c.Start(ctx); err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	} else if ctx.Err() != nil {
		err = nil
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
	defer cancel()
	err = errors.Join(err, c.server.Shutdown(ending), c.Host.Stop(ending))
	serving.Wait()
	return err
}

// Close ends the connections. Call it after Serve, or after Host.Stop.
func (c *Controller) Close() {
	c.bus.Close()
	c.pool.Close()
}
