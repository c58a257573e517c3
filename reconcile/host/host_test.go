package host_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == faultWord {
		faultMain(os.Args[2:])
		return
	}
	testenv.Run(m, registrytest.Leaks())
}

// app is the program of testdata/app.
func app(t testing.TB) string {
	t.Helper()
	program, err := os.ReadFile(testenv.Program(t, "testdata/app"))
	check(t, err)
	return string(program)
}

// node is one node of a mesh under test: keys, registry, and a host on them.
type node struct {
	t            *testing.T
	name         string
	root         string
	config       host.Config
	layout       host.Layout
	key          ed25519.PrivateKey
	registry     *registrytest.Registry
	client       *registry.Client
	identity     host.Identity
	host         *host.Host
	engine       *engine.Engine
	image        string // declared reference of the app
	stopServe    func()
	gen          int64
	web, service string // where two versions answer
}

// names must differ between tests, since they share an engine.
var nodeNames = struct {
	sync.Mutex
	n int
}{}

func newNode(t *testing.T) *node {
	t.Helper()
	nodeNames.Lock()
	nodeNames.n++
	name := "t" + strconv.Itoa(os.Getpid()) + "n" + strconv.Itoa(nodeNames.n)
	nodeNames.Unlock()
	public, key, err := ed25519.GenerateKey(nil)
	check(t, err)
	n := &node{t: t, name: name, root: t.TempDir(), key: key, registry: registrytest.Start(t)}
	n.client = n.registry.Client(t)
	n.layout = host.NewLayout(n.root)
	n.config = host.Config{
		Mesh: "test", Node: name, DeclarationKey: public, Engine: testenv.Engine(t), ProxyPort: freePort(t), Version: "test",
	}
	n.identity, err = host.LoadIdentity(n.layout)
	check(t, err)
	n.engine, err = engine.Open(n.config.Engine)
	check(t, err)
	n.image = n.pushApp("modules/app/app")
	n.open()
	t.Cleanup(n.end)
	return n
}

func (n *node) open() {
	n.t.Helper()
	h, err := host.Open(n.config, n.layout, testLog(n.t))
	check(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); h.Serve(ctx) }()
	n.host, n.stopServe = h, func() { cancel(); <-served }
}

func (n *node) close() {
	if n.host != nil {
		n.stopServe()
		n.host.Close()
		n.host = nil
	}
}

// restart is the host's death and its next life.
func (n *node) restart() {
	n.t.Helper()
	n.close()
	n.open()
}

func (n *node) end() {
	if n.host == nil {
		n.open()
	}
	if err := n.host.Dismantle(context.Background()); err != nil {
		n.t.Errorf("dismantle: %v", err)
	}
	n.close()
	_ = n.engine.RemoveImage(context.Background(), n.pulled(n.image))
	_ = n.engine.Close()
}

// pulled is what the engine calls an image of the mesh's registry.
func (n *node) pulled(image string) string {
	return "127.0.0.1:" + strconv.Itoa(n.config.ProxyPort) + "/" + strings.TrimPrefix(image, schema.RegistryName+"/")
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, nil))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ports are handed out below the range that connections take theirs from, so that one stays
// free while what listens on it is restarted.
var ports atomic.Int64

func freePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 20000 + (os.Getpid()*97+int(ports.Add(1)))%12000
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// tarOf packs name to content; a name ending in "*" is a program.
func tarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		mode := int64(0o644)
		if strings.HasSuffix(name, "*") {
			mode = 0o755
		}
		check(t, w.WriteHeader(&tar.Header{Name: strings.TrimSuffix(name, "*"), Mode: mode, Size: int64(len(files[name])), Typeflag: tar.TypeReg}))
		_, err := w.Write([]byte(files[name]))
		check(t, err)
	}
	check(t, w.Close())
	return out.Bytes()
}

func (n *node) pushApp(repository string) string {
	n.t.Helper()
	data := tarOf(n.t, map[string]string{"app*": app(n.t)})
	file := filepath.Join(n.t.TempDir(), "layer.tar")
	check(n.t, os.WriteFile(file, data, 0o600))
	layout := n.t.TempDir()
	_, err := n.client.BundleImage(context.Background(), layout, registry.BundleImage{
		Layer: file, Digest: schema.Digest(data), Size: int64(len(data)), Platform: "linux/amd64", Entrypoint: []string{"/app"},
	})
	check(n.t, err)
	image, err := n.client.PushImageLayout(context.Background(), repository, layout)
	check(n.t, err)
	return schema.RegistryName + "/" + repository + "@" + image.Digest
}

// pushArchive puts a tar into the registry and gives source and digest.
func (n *node) pushArchive(files map[string]string) (source, digest string) {
	n.t.Helper()
	data := tarOf(n.t, files)
	digest = schema.Digest(data)
	check(n.t, n.client.PushBlob(context.Background(), "modules/app", digest, int64(len(data)), func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	}))
	return "https://" + schema.RegistryName + "/v2/modules/app/blobs/" + digest, digest
}

// seal is a value sealed to the node for the module of id.
func (n *node) seal(module, secret, value string) *schema.Sealed {
	n.t.Helper()
	public := n.identity.Public(n.name)
	sealed, err := pki.Seal(public.Sealing, pki.SealInfo("test", n.name, public.Fingerprint, module, secret, "1"), []byte(value))
	check(n.t, err)
	return &sealed
}

func text(s string) *string { return &s }

// declaration of resources, in the next generation, signed.
func (n *node) declaration(resources ...schema.Resource) schema.Declaration {
	n.t.Helper()
	n.gen++
	token := n.registry.Token("*", registry.ActionPull)
	public := n.identity.Public(n.name)
	sealed, err := pki.Seal(public.Sealing, pki.SealInfo("test", n.name, public.Fingerprint, "host", "token", "1"), []byte(token))
	check(n.t, err)
	store, err := json.Marshal(schema.ArtifactStore{URL: n.registry.URL, CA: n.registry.CA, Fingerprint: n.registry.Fingerprint, Token: &sealed})
	check(n.t, err)
	d := schema.Declaration{
		Schema: schema.Version, Node: n.name, Epoch: 1, Generation: n.gen, Resources: resources,
		Modules:   map[string]string{},
		Host:      schema.HostSection{Config: map[string]json.RawMessage{schema.ConfigArtifactStore: store}, Telemetry: map[string]json.RawMessage{}, Access: map[string]json.RawMessage{}},
		Devices:   schema.DeviceSection{Assignments: []json.RawMessage{}},
		Instances: []json.RawMessage{}, Site: schema.SiteSection{CacheImages: []string{}},
	}
	if d.Resources == nil {
		d.Resources = []schema.Resource{}
	}
	n.sign(&d)
	return d
}

func (n *node) sign(d *schema.Declaration) {
	n.t.Helper()
	var err error
	d.Hash, err = schema.HashDeclaration(*d)
	check(n.t, err)
	check(n.t, pki.SignDeclaration(n.key, d))
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	check(t, err)
	return data
}

// apply accepts and converges.
func (n *node) apply(resources ...schema.Resource) (outcome, cause string) {
	n.t.Helper()
	check(n.t, n.host.Accept("declaration.json", encode(n.t, n.declaration(resources...))))
	return n.converge()
}

func (n *node) converge() (outcome, cause string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	outcome, cause, err := n.host.Converge(ctx)
	check(n.t, err)
	return outcome, cause
}

// mustApply applies and expects success.
func (n *node) mustApply(resources ...schema.Resource) {
	n.t.Helper()
	if outcome, cause := n.apply(resources...); outcome != host.OutcomeApplied {
		n.t.Fatalf("outcome %s: %s", outcome, cause)
	}
}

func (n *node) container(id string) engine.Container {
	n.t.Helper()
	c, err := n.engine.Inspect(context.Background(), engine.Name(n.name, id))
	check(n.t, err)
	return c
}

func (n *node) phase(id string) schema.ResourceStatus {
	n.t.Helper()
	for _, r := range n.host.Look(context.Background()).Resources {
		if r.ID == id {
			return r
		}
	}
	n.t.Fatalf("%s is not in the report", id)
	return schema.ResourceStatus{}
}

func (n *node) path(declared string) string { return n.root + declared }

func (n *node) read(declared string) string {
	n.t.Helper()
	data, err := os.ReadFile(n.path(declared))
	check(n.t, err)
	return string(data)
}

// eventually polls until ok, for at most half a minute.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
