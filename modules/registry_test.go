package modules_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/builder"
	"github.com/mesh-control/mesh/internal/carried"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

const registryModule = "registry"

// builtRegistry is the registry module as the ordinary builder makes it of modules/registry,
// from the image that is carried in.
func builtRegistry(t *testing.T, store *registrytest.Registry) compose.Manifest {
	t.Helper()
	client := store.Client(t)
	image, err := carried.Registry(testenv.Program(t, "../cmd/mesh-registry"))(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.PushLayout(t.Context(), image.Dir, image.Reference); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(registryModule, "module.json"))
	if err != nil {
		t.Fatal(err)
	}
	repository := testenv.Git(t)
	repository.Write("modules/registry/module.json", string(text))
	repository.Commit("The registry")
	b := &builder.Builder{Name: "b", Work: t.TempDir(), Registry: client}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	result := b.Build(t.Context(), schema.Job{Schema: schema.Version, ID: "build", Repository: repository.URL(), Path: "modules/registry"}, nil)
	if result.Outcome != schema.OutcomeBuilt {
		t.Fatalf("%s: %+v\n%s", result.Outcome, result.Error, result.Log)
	}
	return compose.Manifest{Digest: result.Digest, Document: *result.Manifest}
}

func TestS1_144_TheRegistryIsAnUpstreamArtifactLikeAnyOther(t *testing.T) {
	t.Parallel()
	module := parsed(t, ".")[registryModule]
	if module == nil || len(module.Artifacts) != 1 || module.Artifacts["server"].Kind != schema.KindUpstream {
		t.Fatalf("its artifacts are %+v", module)
	}
	store := registrytest.Start(t)
	manifest := builtRegistry(t, store).Document
	server := manifest.Resources[slices.IndexFunc(manifest.Resources, func(r schema.Resource) bool { return r.ID == "server" })]
	repository, digest, _ := strings.Cut(strings.TrimPrefix(server.Image, schema.RegistryName+"/"), "@")
	if repository != registry.ImageRepository(registryModule, "server") || digest != manifest.Artifacts["server"].Digest {
		t.Errorf("its manifest points to %s", server.Image)
	}
	if err := store.Client(t).Resolve(t.Context(), repository, digest); err != nil {
		t.Errorf("what its manifest points to is not in the registry it is the manifest of: %v", err)
	}
	if upstream := manifest.Artifacts["server"].Upstream; upstream == nil || upstream.Reference != carried.RegistryReference || upstream.Digest != digest {
		t.Errorf("upstream is recorded as %+v", upstream)
	}
}

// registryNode is a node whose host was told to run the registry module, and nothing else.
type registryNode struct {
	t       *testing.T
	name    string
	address string
	engine  string
	host    *host.Host
	ca      *pki.CA
	tokens  ed25519.PrivateKey
}

// registryNodes counts them: each has a name of its own on the engine that all share, and an
// address of its own, since the module has one port.
var registryNodes atomic.Int32

func startRegistry(t *testing.T) *registryNode {
	t.Helper()
	number, pid := registryNodes.Add(1), os.Getpid()
	n := &registryNode{
		t: t, name: fmt.Sprintf("r%dn%d", pid, number), address: fmt.Sprintf("127.%d.%d.%d", 64+pid%64, pid/64%256, number),
		engine: testenv.Engine(t),
	}
	store := registrytest.Start(t)
	manifest := builtRegistry(t, store)
	var err error
	if n.ca, err = pki.NewCA("test"); err != nil {
		t.Fatal(err)
	}
	certificate, key, err := n.ca.Issue("registry", []string{n.address})
	if err != nil {
		t.Fatal(err)
	}
	var public ed25519.PublicKey
	if public, n.tokens, err = ed25519.GenerateKey(nil); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	layout := host.NewLayout(t.TempDir())
	identity, err := host.LoadIdentity(layout)
	if err != nil {
		t.Fatal(err)
	}
	keys := identity.Public(n.name)
	seal := func(module, name string, value []byte) schema.Sealed {
		sealed, err := pki.Seal(keys.Sealing, pki.SealInfo("test", n.name, keys.Fingerprint, module, name, "1"), value)
		if err != nil {
			t.Fatal(err)
		}
		return sealed
	}
	given := func(name string, value []byte) compose.Secret {
		return compose.Secret{Module: registryModule, Name: name, Given: true, Sealed: seal(registryModule, "secret."+name, value)}
	}
	token := seal("host", "token", []byte(store.Token("*", registry.ActionPull)))
	out, err := compose.Compose(compose.Input{
		Node: n.name,
		Mesh: compose.Mesh{
			Nodes: []compose.Node{{
				Name: n.name, Address: n.address, Platform: "linux/" + runtime.GOARCH, Schema: schema.Version,
				Capabilities: []string{"container-runtime"}, Fingerprint: keys.Fingerprint,
			}},
			Assignments: []compose.Assignment{{Module: registryModule, Node: n.name}},
			Manifests:   map[string]compose.Manifest{registryModule: manifest},
		},
		Secrets: []compose.Secret{
			given("certificate", certificate), given("certificate-key", key),
			given("token-key", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
		},
		ArtifactStore: &schema.ArtifactStore{URL: store.URL, CA: store.CA, Fingerprint: store.Fingerprint, Token: &token},
	})
	if err != nil || len(out.Blocked) > 0 {
		t.Fatalf("compose: %v, %+v", err, out.Blocked)
	}
	n.apply(layout, out.Declaration)
	return n
}

func (n *registryNode) apply(layout host.Layout, declaration schema.Declaration) {
	n.t.Helper()
	public, signing, err := ed25519.GenerateKey(nil)
	if err != nil {
		n.t.Fatal(err)
	}
	declaration.Epoch, declaration.Generation = 1, 1
	if err := pki.SignDeclaration(signing, &declaration); err != nil {
		n.t.Fatal(err)
	}
	text, err := schema.Canonical(declaration)
	if err != nil {
		n.t.Fatal(err)
	}
	config := host.Config{
		Mesh: "test", Node: n.name, DeclarationKey: public, Engine: n.engine, ProxyPort: freePort(n.t, "127.0.0.1"), Version: "test",
	}
	if n.host, err = host.Open(config, layout, slog.New(slog.NewTextHandler(n.t.Output(), nil))); err != nil {
		n.t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); n.host.Serve(serving) }()
	n.t.Cleanup(func() {
		if err := n.host.Dismantle(context.Background()); err != nil {
			n.t.Errorf("dismantle: %v", err)
		}
		stop()
		<-served
		n.host.Close()
		_ = exec.Command("docker", "-H", n.engine, "image", "rm", "-f", strings.Replace(
			declaration.Resources[len(declaration.Resources)-1].Image, schema.RegistryName, "127.0.0.1:"+strconv.Itoa(config.ProxyPort), 1)).Run()
	})
	if err := n.host.Accept("declaration", text); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	defer cancel()
	if outcome, cause, err := n.host.Converge(ctx); err != nil || outcome != host.OutcomeApplied {
		n.t.Fatalf("%s: %s, %v", outcome, cause, err)
	}
}

// status is what the node's report says of the registry's container.
func (n *registryNode) status() schema.ResourceStatus {
	n.t.Helper()
	for _, resource := range n.host.Look(n.t.Context()).Resources {
		if resource.ID == registryModule+"/server" {
			return resource
		}
	}
	n.t.Fatal("the report does not know the registry")
	return schema.ResourceStatus{}
}

// inspect is what the engine says of the registry's container.
func (n *registryNode) inspect(format string) string {
	n.t.Helper()
	out, err := exec.Command("docker", "-H", n.engine, "inspect", "--format", format, engine.Name(n.name, registryModule+"/server")).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// ask is a request to /v2/ on the node, answered with a status.
func (n *registryNode) ask(token string) int {
	n.t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(n.ca.Cert)
	request, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "https://"+n.address+":5000/v2/", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}).RoundTrip(request)
	if err != nil {
		n.t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func TestS1_146_TheRegistryModuleAnswersOnItsNode(t *testing.T) {
	t.Parallel()
	n := startRegistry(t)
	if status := n.ask(""); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}
	token := registry.SignToken(n.tokens, registry.Claims{Subject: "test", IssuedAt: time.Now()})
	if status := n.ask(token); status != http.StatusOK {
		t.Errorf("with the mesh's token: %d", status)
	}
	if s := n.status(); s.Phase != host.PhaseRunning {
		t.Errorf("the report says %s: %s", s.Phase, s.Message)
	}
}

func TestS1_148_ARegistryThatRunsAndDoesNotReplyIsFailing(t *testing.T) {
	t.Parallel()
	n := startRegistry(t)
	pid, err := strconv.Atoi(n.inspect("{{.State.Pid}}"))
	if err != nil || pid < 2 {
		t.Fatalf("process %d: %v", pid, err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	phase := func(want string) func() error {
		return func() error {
			if s := n.status(); s.Phase != want {
				return fmt.Errorf("the report says %s: %s", s.Phase, s.Message)
			}
			return nil
		}
	}
	eventually(t, "the stopped registry is failing", phase(host.PhaseFailing))
	if running := n.inspect("{{.State.Running}} {{.RestartCount}}"); running != "true 0" {
		t.Errorf("the engine says of its container: running, restarts: %s", running)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is healthy again", phase(host.PhaseRunning))
}
