package genesis

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/foundation"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// readyWait bounds how long a server of the foundation may take to answer.
const readyWait = 90 * time.Second

// controllerAccount is the broker account of the controllers.
const controllerAccount = "controller"

func (in *Installer) postgres() (foundation.Postgres, error) {
	cert, key, err := in.keys.certificate(in.layout(), "postgres", in.hosts()...)
	if err != nil {
		return foundation.Postgres{}, err
	}
	p := foundation.Postgres{
		Dir: in.layout().path("postgres"), Port: in.ports.Postgres, Listen: in.hosts(), Password: in.keys.superuser,
		CertPEM: cert, KeyPEM: key,
	}
	if os.Getuid() == 0 {
		p.User = "postgres"
	}
	return p, nil
}

func (in *Installer) broker() (foundation.Broker, error) {
	cert, key, err := in.keys.certificate(in.layout(), "broker", in.hosts()...)
	if err != nil {
		return foundation.Broker{}, err
	}
	return foundation.Broker{
		Dir: in.layout().path("broker"), NodeName: "mesh" + strconv.Itoa(in.ports.Broker) + "@localhost",
		AMQPSPort: in.ports.Broker, ManagementPort: in.ports.Management, DistPort: in.ports.Dist, EPMDPort: in.ports.EPMD,
		Listen: in.hosts(), CertPEM: cert, KeyPEM: key, AdminUser: "genesis", AdminPassword: in.keys.brokerAdmin,
	}, nil
}

// raiseFoundation has the host supervise registry, PostgreSQL and broker, and waits for each.
func (in *Installer) raiseFoundation(ctx context.Context) (string, error) {
	resources, err := in.foundationResources(ctx)
	if err != nil {
		return "", err
	}
	if err := in.startHost(ctx, resources); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	postgres, err := in.postgres()
	if err != nil {
		return "", err
	}
	if err := postgres.WaitReady(ctx); err != nil {
		return "", fmt.Errorf("PostgreSQL: %w", err)
	}
	broker, err := in.broker()
	if err != nil {
		return "", err
	}
	if err := broker.WaitReady(ctx); err != nil {
		return "", fmt.Errorf("broker: %w", err)
	}
	if err := in.waitRegistry(ctx); err != nil {
		return "", fmt.Errorf("registry: %w", err)
	}
	if err := in.brokerAccounts(ctx, broker); err != nil {
		return "", fmt.Errorf("broker accounts: %w", err)
	}
	return "registry, PostgreSQL and broker answer, supervised by the host", nil
}

// foundationResources lays out the three servers and says how each is run, as resources of a
// declaration like any other.
func (in *Installer) foundationResources(ctx context.Context) ([]schema.Resource, error) {
	postgres, err := in.postgres()
	if err != nil {
		return nil, err
	}
	if err := postgres.Init(ctx); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	postgresCommand, err := postgres.Command()
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	broker, err := in.broker()
	if err != nil {
		return nil, err
	}
	if err := broker.Init(ctx); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	brokerCommand, err := broker.Command()
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	registryCommand, err := in.registryCommand()
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return []schema.Resource{
		service("registry", registryCommand, in.ports.Registry),
		service("postgres", postgresCommand, in.ports.Postgres),
		service("broker", brokerCommand, in.ports.Broker),
	}, nil
}

func service(id string, command foundation.Command, port int) schema.Resource {
	env := map[string]string{}
	for _, pair := range command.Env {
		key, value, _ := strings.Cut(pair, "=")
		env[key] = value
	}
	return schema.Resource{
		ID: compose.FoundationModule + "/" + id, Type: schema.TypeService,
		Exec: command.Exec, Args: command.Args, Env: env, User: command.User, Directory: command.Dir, Restart: "always",
		StopSignal: command.StopSignal, StopTimeout: 60,
		Health: &schema.Health{TCP: "127.0.0.1:" + strconv.Itoa(port), Interval: 5, Window: 60},
	}
}

func (in *Installer) registryCommand() (foundation.Command, error) {
	l := in.layout()
	if _, _, err := in.keys.certificate(l, "registry", in.hosts()...); err != nil {
		return foundation.Command{}, err
	}
	public, err := publicPEM(in.keys.registry)
	if err != nil {
		return foundation.Command{}, err
	}
	if err := writeFile(l.keys("registry-public.pem"), public, 0o600); err != nil {
		return foundation.Command{}, err
	}
	args := []string{
		"--dir", l.path("registry"), "--certificate", l.keys("registry.pem"), "--key", l.keys("registry-key.pem"),
		"--token-key", l.keys("registry-public.pem"),
	}
	for _, address := range in.listen(in.ports.Registry) {
		args = append(args, "--listen", address)
	}
	return foundation.Command{Exec: l.program("mesh-registry"), Args: args, Dir: l.dir}, nil
}

// registryClient reads and writes everything: the installer publishes what it builds.
func (in *Installer) registryClient() (*registry.Client, error) {
	fingerprint, err := in.fingerprint("registry")
	if err != nil {
		return nil, err
	}
	token := registry.SignToken(in.keys.registry, registry.Claims{
		Subject: "genesis", IssuedAt: time.Now(), Access: []registry.Access{{Repository: "*", Actions: []string{"pull", "push", "delete"}}},
	})
	return registry.NewClient(registry.Config{URL: in.registryURL(), CA: string(in.keys.caPEM), Fingerprint: fingerprint, Token: token})
}

func (in *Installer) registryURL() string {
	return fmt.Sprintf("https://%s:%d", in.Address, in.ports.Registry)
}

func (in *Installer) fingerprint(server string) (string, error) {
	cert, _, err := in.keys.certificate(in.layout(), server, in.hosts()...)
	if err != nil {
		return "", err
	}
	return pki.FingerprintPEM(cert)
}

func (in *Installer) waitRegistry(ctx context.Context) error {
	client, err := in.registryClient()
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		_, err := client.HasBlob(ctx, "modules/none", "sha256:"+strings.Repeat("0", 64))
		if err == nil || registry.NotFound(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (in *Installer) admin(broker foundation.Broker) bus.Admin {
	return bus.Admin{URL: broker.ManagementURL(), User: broker.AdminUser, Password: broker.AdminPassword}
}
