package genesis

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mesh-control/mesh/catalogue"
	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/schema"
)

// answerWait bounds how long the controller that the mesh built may take to answer.
const answerWait = 2 * time.Minute

// adopted is the file that says the hand-over is done: from then on the mesh builds and
// pushes itself, and the installer keeps its hands off.
func (in *Installer) adopted() string { return in.layout().path("genesis", "adopted.json") }

// handOver records the mesh's beginning in its database, gives the host the first
// declaration, and waits for the controller in it to answer.
func (in *Installer) handOver(ctx context.Context) (string, error) {
	if !exists(in.adopted()) {
		if err := in.adopt(ctx); err != nil {
			return "", err
		}
	}
	client := in.client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	info, err := until(ctx, func() (api.VersionInfo, error) { return api.SystemVersion.Do(ctx, client, api.None{}) })
	if err != nil {
		return "", in.explained(fmt.Errorf("the controller does not answer at %s: %w", in.controllerURL(), err))
	}
	return fmt.Sprintf("the controller of mesh %s answers at %s", info.Mesh, in.controllerURL()), nil
}

func (in *Installer) adopt(ctx context.Context) error {
	database := in.databaseCredential(catalogueRole, in.keys.catalogueRole)
	pool, err := store.WaitOpen(ctx, database.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := catalogue.Migrate(ctx, pool); err != nil {
		return err
	}
	input, err := in.adoptInput(ctx)
	if err != nil {
		return err
	}
	controllers, err := store.WaitOpen(ctx, input.Config.Database)
	if err != nil {
		return err
	}
	defer controllers.Close()
	out, err := reconcile.Adopt(ctx, controllers, input)
	if err != nil {
		return err
	}
	var held []error
	for _, blocked := range out.Blocked {
		held = append(held, fmt.Errorf("module %s: %s", blocked.Module, blocked.Message))
	}
	if err := errors.Join(held...); err != nil {
		return err
	}
	file := in.layout().path("genesis", "first.json")
	if err := writeJSON(file, out.Declaration, 0o600); err != nil {
		return err
	}
	if err := in.mesh(ctx, "mesh-host", "apply", "--root", in.layout().node(), "--file", file); err != nil {
		return err
	}
	return writeJSON(in.adopted(), map[string]any{"generation": out.Declaration.Generation, "hash": out.Declaration.Hash}, 0o600)
}

func (in *Installer) adoptInput(ctx context.Context) (reconcile.AdoptInput, error) {
	input := reconcile.AdoptInput{
		Operator: "operator", Token: in.keys.token, SigningKey: in.keys.initBuilder.Public().(ed25519.PublicKey),
		Repository: &api.RepositoryAddIn{URL: in.sourceURL(), Ref: "refs/heads/main", Watch: repositories + "/mesh.git"},
	}
	var err error
	if input.Config, err = in.controllerConfig(); err != nil {
		return input, err
	}
	identity, err := host.LoadIdentity(in.hostLayout())
	if err != nil {
		return input, err
	}
	public := identity.Public(in.Node)
	input.Node = api.NodeAddIn{Name: in.Node, Address: in.Address, Identity: public.Identity, SealingKey: public.Sealing}
	report, err := hostReport(ctx, in.hostLayout())
	if err != nil {
		return input, err
	}
	input.Platform, input.Schema, input.Capabilities = report.Agent.Platform, report.Agent.Schema, report.Capabilities
	if input.Foundation, err = in.foundationResources(ctx); err != nil {
		return input, err
	}
	modules, err := in.sourceModules(ctx)
	if err != nil {
		return input, err
	}
	for _, module := range modules {
		result, err := in.readResult(module)
		if err != nil {
			return input, err
		}
		input.Results = append(input.Results, *result)
	}
	input.Assignments = []api.Assignment{
		{Module: "controller", Node: in.Node, Settings: map[string]string{
			"mesh": in.Mesh, "port": strconv.Itoa(in.ports.Controller), "broker-address": in.brokerAddress(),
			"registry-url": in.registryURL(), "registry-fingerprint": input.Config.Registry.Fingerprint,
		}},
		{Module: "catalogue", Node: in.Node, Settings: map[string]string{
			"poll": "10s", "serve-port": strconv.Itoa(in.ports.Git), "metrics-port": strconv.Itoa(in.ports.Metrics),
		}},
	}
	input.Given, err = in.given(input.Config)
	return input, err
}

func (in *Installer) brokerAddress() string {
	return net.JoinHostPort(in.Address, strconv.Itoa(in.ports.Broker))
}

// controllerConfig is the controller's configuration as the installer itself uses it.
func (in *Installer) controllerConfig() (reconcile.Config, error) {
	broker, err := in.broker()
	if err != nil {
		return reconcile.Config{}, err
	}
	brokerPin, err := in.fingerprint("broker")
	if err != nil {
		return reconcile.Config{}, err
	}
	registryPin, err := in.fingerprint("registry")
	if err != nil {
		return reconcile.Config{}, err
	}
	certificate, key, err := in.keys.certificate(in.layout(), "controller", append(in.hosts(), pki.ControllerName)...)
	if err != nil {
		return reconcile.Config{}, err
	}
	return reconcile.Config{
		Mesh: in.Mesh, Database: in.databaseCredential(controllerRole, in.keys.controllerRole).URL,
		Broker: bus.Config{URL: in.brokerURL(), Fingerprints: []string{brokerPin}, Name: "genesis"},
		Admin:  in.admin(broker), BrokerAddress: in.brokerAddress(),
		Certificate: certificate, Key: key, DeclarationKey: in.keys.declaration,
		Registry: &reconcile.Registry{URL: in.registryURL(), CA: string(in.keys.caPEM), Fingerprint: registryPin, Key: in.keys.registry},
	}, nil
}

func (in *Installer) brokerURL() string {
	return fmt.Sprintf("amqps://%s:%s@%s/", controllerAccount, in.keys.controllerAccount, in.brokerAddress())
}

// given are the secrets of controller and catalogue, which come from the installer because
// database, broker and authority were told about them.
func (in *Installer) given(config reconcile.Config) ([]reconcile.GivenSecret, error) {
	declarationKey, err := os.ReadFile(in.layout().keys("signing-declaration.pem"))
	if err != nil {
		return nil, err
	}
	registryKey, err := os.ReadFile(in.layout().keys("signing-registry.pem"))
	if err != nil {
		return nil, err
	}
	var problems []error
	credential := func(c schema.Credential) []byte {
		text, err := json.Marshal(c)
		problems = append(problems, err)
		return text
	}
	secrets := []reconcile.GivenSecret{
		{Module: "controller", Name: "database", Value: credential(in.databaseCredential(controllerRole, in.keys.controllerRole))},
		{Module: "controller", Name: "broker", Value: credential(schema.Credential{URL: in.brokerURL(), Fingerprint: strings.Join(config.Broker.Fingerprints, " ")})},
		{Module: "controller", Name: "broker-admin", Value: credential(schema.Credential{URL: config.Admin.URL, User: config.Admin.User, Password: config.Admin.Password})},
		{Module: "controller", Name: "ca", Value: in.keys.caPEM},
		{Module: "controller", Name: "certificate", Value: config.Certificate},
		{Module: "controller", Name: "certificate-key", Value: config.Key},
		{Module: "controller", Name: "declaration-key", Value: declarationKey},
		{Module: "controller", Name: "registry-key", Value: registryKey},
		{Module: "catalogue", Name: "database", Value: credential(in.databaseCredential(catalogueRole, in.keys.catalogueRole))},
	}
	return secrets, errors.Join(problems...)
}

func (in *Installer) client() *apiclient.Client {
	return apiclient.New(apiclient.ContextFile{
		Mesh: in.Mesh, URL: in.controllerURL(), Fingerprint: pki.Fingerprint(in.keys.ca.Cert), Token: in.keys.token,
	})
}

// until asks again, five times a second, while there is no answer or not the one waited for.
func until[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		answer, err := ask()
		if err == nil {
			return answer, nil
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// watchSource waits until the catalogue has read the source the mesh was built from.
func (in *Installer) watchSource(ctx context.Context) (string, error) {
	client := in.client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	repository, err := until(ctx, func() (api.Repository, error) {
		list, err := api.RepositoryList.Do(ctx, client, api.None{})
		if err != nil {
			return api.Repository{}, err
		}
		for _, repository := range list.Repositories {
			if repository.URL != in.sourceURL() {
				continue
			}
			if repository.State == "ok" {
				return repository, nil
			}
			return repository, fmt.Errorf("the catalogue reads %s: %s %s", repository.URL, repository.State, repository.Message)
		}
		return api.Repository{}, fmt.Errorf("the catalogue does not know %s", in.sourceURL())
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d modules at commit %.12s", repository.Modules, repository.Commit), nil
}

const builderModule = "builder"

// assignBuilder issues a builder's account for this node, assigns the module and pushes.
func (in *Installer) assignBuilder(ctx context.Context) (string, error) {
	client := in.client()
	defer client.Close()
	builders, err := api.BuilderList.Do(ctx, client, api.None{})
	if err != nil {
		return "", err
	}
	issued := false
	for _, b := range builders.Builders {
		issued = issued || b.Node == in.Node
	}
	if !issued {
		if _, err := api.BuilderIssue.Do(ctx, client, api.NodeRef{Node: in.Node}); err != nil {
			return "", err
		}
	}
	_, err = api.AssignmentAdd.Do(ctx, client, api.AssignIn{Module: builderModule, Node: in.Node, Settings: map[string]string{
		"engine-socket": strings.TrimPrefix(in.Engine, "unix://"), "toolchain-go": in.toolchain,
		"metrics-port": strconv.Itoa(in.ports.Builder),
	}})
	if err != nil {
		return "", err
	}
	if err := in.push(ctx, client); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	return until(ctx, func() (string, error) {
		builders, err := api.BuilderList.Do(ctx, client, api.None{})
		if err != nil {
			return "", err
		}
		for _, b := range builders.Builders {
			if b.Node == in.Node && b.Connected {
				return "account " + b.Account + " is issued, and takes work", nil
			}
		}
		return "", errors.New("the builder takes no work")
	})
}

// push sends this node what it is behind with, and waits until it is applied.
func (in *Installer) push(ctx context.Context, client *apiclient.Client) error {
	plan, err := api.DeliveryPlan.Do(ctx, client, api.PlanIn{Nodes: []string{in.Node}})
	if err != nil || len(plan.Nodes) == 0 {
		return err
	}
	hashes := map[string]string{}
	for _, node := range plan.Nodes {
		for _, blocked := range node.Blocked {
			return fmt.Errorf("module %s: %s", blocked.Module, blocked.Message)
		}
		hashes[node.Node] = node.Hash
	}
	pushed, err := api.DeliveryPush.Do(ctx, client, api.PushIn{Plans: hashes})
	if err != nil {
		return err
	}
	generations := map[string]int64{}
	for _, node := range pushed.Nodes {
		generations[node.Node] = node.Generation
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	for {
		waiting := false
		watched, err := api.DeliveryWatch.Do(ctx, client, api.DeliveryWatchIn{Generations: generations})
		if err != nil {
			return err
		}
		if !watched.Done {
			continue
		}
		for _, node := range watched.Nodes {
			if node.State == "waiting" { // the host reports within seconds of the controller's start
				waiting = true
				continue
			}
			if node.State != "applied" {
				return fmt.Errorf("node %s: %s: %s", node.Node, node.State, node.Message)
			}
		}
		if !waiting {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}
