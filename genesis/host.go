package genesis

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/foundation"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/schema"
)

// The declaration that holds the foundation alone. Its epoch is before the controller's
// first, so that whatever the controller declares comes after it.
const (
	foundationEpoch      = 0
	foundationGeneration = 1
)

func (in *Installer) hostLayout() host.Layout { return host.NewLayout(in.layout().node()) }

// startHost configures this machine's host, starts it where it does not run, and gives it the
// foundation where it has never been told anything.
func (in *Installer) startHost(ctx context.Context, resources []schema.Resource) error {
	layout := in.hostLayout()
	if _, err := host.LoadIdentity(layout); err != nil {
		return fmt.Errorf("node identity: %w", err)
	}
	if err := in.configureHost(); err != nil {
		return fmt.Errorf("configure host: %w", err)
	}
	report, err := hostReport(ctx, layout)
	if errors.Is(err, host.ErrNotRunning) {
		if err := in.mesh(ctx, "mesh-host", "run", "--root", in.layout().node(), "--detach"); err != nil {
			return err
		}
		report, err = hostReport(ctx, layout)
	}
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if report.Seen >= foundationGeneration {
		return nil
	}
	file, err := in.foundationDeclaration(resources)
	if err != nil {
		return err
	}
	return in.mesh(ctx, "mesh-host", "apply", "--root", in.layout().node(), "--file", file)
}

func hostReport(ctx context.Context, layout host.Layout) (schema.Report, error) {
	var report schema.Report
	err := host.Ask(ctx, layout, http.MethodGet, "/status", nil, &report)
	return report, err
}

// explained adds to an error what the host says is not well on this machine.
func (in *Installer) explained(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	report, askErr := hostReport(ctx, in.hostLayout())
	if askErr != nil {
		return fmt.Errorf("%w; and the host does not answer: %w", err, askErr)
	}
	problems := []error{err}
	for _, resource := range report.Resources {
		if resource.Message != "" {
			problems = append(problems, fmt.Errorf("%s is %s: %s", resource.ID, resource.Phase, resource.Message))
		}
	}
	return errors.Join(problems...)
}

func (in *Installer) configureHost() error {
	broker, err := in.broker()
	if err != nil {
		return err
	}
	fingerprint, err := in.fingerprint("broker")
	if err != nil {
		return err
	}
	public, _ := in.keys.declaration.Public().(ed25519.PublicKey)
	return host.SaveConfig(in.hostLayout().ConfigFile(), host.Config{
		Mesh: in.Mesh, Node: in.Node, Address: in.Address, DeclarationKey: public, Engine: in.Engine, ProxyPort: in.ports.Proxy,
		Broker: &schema.Credential{URL: broker.URL(bus.NodeName(in.Node), in.keys.node), Fingerprint: fingerprint},
	})
}

func (in *Installer) foundationDeclaration(resources []schema.Resource) (string, error) {
	declaration := schema.Declaration{
		Schema: schema.Version, Node: in.Node, Epoch: foundationEpoch, Generation: foundationGeneration, Resources: resources,
		Modules: map[string]string{}, Instances: []json.RawMessage{},
		Host:    schema.HostSection{Config: map[string]json.RawMessage{}, Telemetry: map[string]json.RawMessage{}, Access: map[string]json.RawMessage{}},
		Devices: schema.DeviceSection{Assignments: []json.RawMessage{}}, Site: schema.SiteSection{CacheImages: []string{}},
	}
	var err error
	if declaration.Hash, err = schema.HashDeclaration(declaration); err != nil {
		return "", err
	}
	if err := pki.SignDeclaration(in.keys.declaration, &declaration); err != nil {
		return "", err
	}
	path := in.layout().path("genesis", "foundation.json")
	return path, writeJSON(path, declaration, 0o600)
}

// mesh runs one of the mesh's programs as installed, and quotes what it says when it fails.
func (in *Installer) mesh(ctx context.Context, program string, args ...string) error {
	command := exec.CommandContext(ctx, in.layout().program(program), args...)
	command.WaitDelay = 5 * time.Second
	out, err := os.CreateTemp("", "mesh-genesis-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	// A file and not a pipe: what the program leaves running would hold a pipe open.
	command.Stdout, command.Stderr = out, out
	if err := command.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s %s: %w: %s", program, args[0], err, lastLines(text))
	}
	return nil
}

func lastLines(text []byte) string {
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return string(text)
}

// brokerAccounts declares the mesh's queues and makes the accounts of controller and node.
func (in *Installer) brokerAccounts(ctx context.Context, broker foundation.Broker) error {
	admin := in.admin(broker)
	for _, account := range []bus.Account{bus.ControllerAccount(in.keys.controllerAccount), bus.NodeAccount(in.Node, in.keys.node)} {
		if err := admin.PutAccount(ctx, account); err != nil {
			return err
		}
	}
	fingerprint, err := in.fingerprint("broker")
	if err != nil {
		return err
	}
	conn := bus.Dial(ctx, bus.Config{
		URL: broker.URL(controllerAccount, in.keys.controllerAccount), Fingerprints: []string{fingerprint}, Name: "genesis",
	})
	defer conn.Close()
	if err := bus.Declare(ctx, conn, bus.MeshTopology()); err != nil {
		return err
	}
	return bus.Declare(ctx, conn, bus.NodeTopology(in.Node))
}
