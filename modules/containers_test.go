package modules_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/carried"
	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// node runs the containers of modules as a host does, from a registry, below a directory.
type node struct {
	t       *testing.T
	engine  string
	address string // of the engine's bridge
	root    string
	client  *registry.Client
	proxy   *registry.Proxy
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, engine: testenv.Engine(t), address: testenv.BridgeAddress(t), root: t.TempDir()}
	store := registrytest.Start(t)
	n.client = store.Client(t)
	var err error
	if n.proxy, err = registry.NewProxy("127.0.0.1:0", nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.proxy.Serve(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	if err := n.proxy.Update(store.Config()); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) try(args ...string) (string, error) {
	out, err := exec.Command("docker", append([]string{"-H", n.engine}, args...)...).CombinedOutput()
	return string(out), err
}

func (n *node) docker(args ...string) string {
	n.t.Helper()
	out, err := n.try(args...)
	if err != nil {
		n.t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// bundle makes the image of a Go module's program and gives how the engine pulls it.
func (n *node) bundle(repository, dir string) string {
	n.t.Helper()
	program, err := os.ReadFile(testenv.Program(n.t, dir))
	if err != nil {
		n.t.Fatal(err)
	}
	blob := filepath.Join(n.t.TempDir(), "bundle.tar")
	file, err := os.Create(blob)
	if err != nil {
		n.t.Fatal(err)
	}
	archive := tar.NewWriter(file)
	if err := archive.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(program))}); err != nil {
		n.t.Fatal(err)
	}
	_, _ = archive.Write(program)
	if err := archive.Close(); err != nil {
		n.t.Fatal(err)
	}
	_ = file.Close()
	packed, err := os.ReadFile(blob)
	if err != nil {
		n.t.Fatal(err)
	}
	layout := n.t.TempDir()
	_, err = n.client.BundleImage(n.t.Context(), layout, registry.BundleImage{
		Layer: blob, Digest: schema.Digest(packed), Size: int64(len(packed)), Platform: "linux/amd64", Entrypoint: []string{"/program"},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	image, err := n.client.PushImageLayout(n.t.Context(), repository, layout)
	if err != nil {
		n.t.Fatal(err)
	}
	return n.proxy.Address() + "/" + repository + "@" + image.Digest
}

// start runs one container of a module: values are what ${…} stands for, ports[x] is where
// the node publishes port x.
func (n *node) start(module *schema.Module, id, image string, values map[string]string, ports map[int]int) {
	n.t.Helper()
	text, err := json.Marshal(module.Resources[slices.IndexFunc(module.Resources, func(r schema.Resource) bool { return r.ID == id })])
	if err != nil {
		n.t.Fatal(err)
	}
	expanded := string(text)
	for name, value := range values {
		expanded = strings.ReplaceAll(expanded, "${"+name+"}", value)
	}
	var r schema.Resource
	if err := json.Unmarshal([]byte(expanded), &r); err != nil {
		n.t.Fatal(err)
	}
	args := []string{"run", "-d"}
	if r.ReadOnly {
		args = append(args, "--read-only")
	}
	for name, value := range r.Env {
		args = append(args, "-e", name+"="+value)
	}
	for _, m := range r.Mounts {
		source := filepath.Join(n.root, m.Source)
		if err := os.MkdirAll(source, 0o700); err != nil {
			n.t.Fatal(err)
		}
		mount := "type=bind,source=" + source + ",target=" + m.Target
		if m.ReadOnly {
			mount += ",readonly"
		}
		args = append(args, "--mount", mount)
	}
	for _, p := range r.Ports {
		args = append(args, "-p", fmt.Sprintf("%s:%d:%d", n.address, ports[p.Container], p.Container))
	}
	args = append(args, image)
	for _, word := range r.Command {
		if port, err := strconv.Atoi(word); err == nil && ports[port] != 0 {
			word = strconv.Itoa(ports[port])
		}
		args = append(args, word)
	}
	n.docker("pull", "-q", image) // or its progress would stand before the id
	container := n.docker(args...)
	n.t.Cleanup(func() {
		if n.t.Failed() {
			logs, _ := n.try("logs", "--tail", "30", container)
			n.t.Logf("%s/%s:\n%s", module.Name, id, logs)
		}
		_, _ = n.try("rm", "-f", "-v", container)
		_, _ = n.try("image", "rm", "-f", image)
	})
}

// write puts a file where a declared path is.
func (n *node) write(declared string, text []byte) {
	n.t.Helper()
	name := filepath.Join(n.root, declared)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(name, text, 0o400); err != nil {
		n.t.Fatal(err)
	}
}

// freePort is one nobody listens on at an address now.
func freePort(t *testing.T, address string) int {
	t.Helper()
	listener, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// Server and provisioner of postgres, and the web example, each in its container on the
// engine's bridge, reach each other by the node's address as their module.json says.
func TestTheWebExampleCountsInTheDatabaseThePostgresModuleGivesIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	modules := parsed(t, ".", "../examples")
	postgres, web := modules["postgres"], modules["web"]
	image, err := carried.Postgres(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.client.PushLayout(t.Context(), image.Dir, image.Reference); err != nil {
		t.Fatal(err)
	}
	mirrored, err := n.client.Mirror(t.Context(), postgres.Artifacts["server"].Reference, nil, "modules/postgres/server")
	if err != nil {
		t.Fatal(err)
	}
	database, http8080 := freePort(t, n.address), freePort(t, n.address)
	ports := map[int]int{5432: database, 8080: http8080}
	values := map[string]string{
		"node.address": n.address, "node.name": "n1", "max_connections": "20",
		"secret.superuser.path": postgres.OwnSecrets["superuser"].Path, "secret.postgresql.path": web.Secrets["postgresql"],
	}
	n.write(postgres.OwnSecrets["superuser"].Path, []byte("superuser's secret"))
	grant := schema.Grant{
		Schema: schema.Version, Consumer: "web", Node: "n1", Provision: "postgresql",
		User: "web_n1", Password: "web's secret", Database: "web_n1",
	}
	text, _ := json.Marshal(grant)
	n.write(postgres.Provides[0].Grants+"/web.n1.json", text)
	credential, _ := json.Marshal(schema.Credential{
		Host: n.address, Port: database, User: grant.User, Password: grant.Password, Database: grant.Database,
	})
	n.write(web.Secrets["postgresql"], credential)

	n.start(web, "server", n.bundle("modules/web/server", "../examples/web"), values, ports)
	n.start(postgres, "provisioner", n.bundle("modules/postgres/provisioner", "postgres/provisioner"), values, ports)
	health := fmt.Sprintf("http://%s:%d/healthz", n.address, http8080)
	eventually(t, "the service says that its database does not answer", func() error {
		return n.status(health, http.StatusServiceUnavailable)
	})
	n.start(postgres, "server", n.proxy.Address()+"/modules/postgres/server@"+mirrored.Digest, values, ports)
	eventually(t, "healthy", func() error { return n.status(health, http.StatusOK) })
	for _, want := range []string{"visit 1 on n1", "visit 2 on n1"} {
		response, err := plainGet(t, fmt.Sprintf("http://%s:%d/", n.address, http8080))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(response, "hello") || !strings.Contains(response, want) || !strings.Contains(response, "database web_n1") {
			t.Errorf("it says %q, want %q", response, want)
		}
	}
}

func (n *node) status(url string, want int) error {
	request, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		return fmt.Errorf("%s", response.Status)
	}
	return nil
}

func plainGet(t *testing.T, url string) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}
