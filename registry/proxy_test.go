package registry_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/internal/testenv"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

func startProxy(t *testing.T) *registry.Proxy {
	t.Helper()
	proxy := must(registry.NewProxy("127.0.0.1:0", nil))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !strings.Contains(err.Error(), "Server closed") {
			t.Errorf("proxy ended: %v", err)
		}
	})
	return proxy
}

func TestTheProxyPassesReadingOnWithTheNodesToken(t *testing.T) {
	t.Parallel()
	store, proxy := registrytest.Start(t), startProxy(t)
	if err := pushText(t, store.Client(t), "modules/web", "text"); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client, base := &http.Client{Transport: transport}, "http://"+proxy.Address()
	blob := base + "/v2/modules/web/blobs/" + schema.Digest([]byte("text"))
	if got := get(t, client, "GET", blob, ""); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("before it was told of a registry: %s", got.Status)
	}
	config := store.Config()
	config.Token = store.Token("modules/*", "pull")
	if err := proxy.Update(config); err != nil {
		t.Fatal(err)
	}
	got := get(t, client, "GET", blob, "a stranger's token")
	if data := must(io.ReadAll(got.Body)); got.StatusCode != http.StatusOK || string(data) != "text" {
		t.Errorf("read: %s, %q", got.Status, data)
	}
	if got := get(t, client, "GET", base+"/v2/", ""); got.StatusCode != http.StatusOK {
		t.Errorf("base: %s", got.Status)
	}
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		if got := get(t, client, method, blob, ""); got.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, got.Status)
		}
	}
	if got := get(t, client, "GET", base+"/metrics", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %s", got.Status)
	}
	config.Token = store.Token("modules/db", "pull")
	if err := proxy.Update(config); err != nil {
		t.Fatal(err)
	}
	if got := get(t, client, "GET", blob, ""); got.StatusCode != http.StatusForbidden || got.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("after another token was given: %s", got.Status)
	}
	request := must(http.NewRequestWithContext(t.Context(), http.MethodGet, blob, nil))
	request.Host = "registry.example.org"
	refused := must(client.Do(request))
	_ = refused.Body.Close()
	if refused.StatusCode != http.StatusForbidden {
		t.Errorf("by a name that is not loopback: %s", refused.Status)
	}
}

func TestTheProxyListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "localhost:0"} {
		if proxy, err := registry.NewProxy(address, nil); err == nil {
			_ = proxy.Close()
			t.Errorf("listens on %s", address)
		}
	}
}

// engineClient speaks to a container engine over its socket.
func engineClient(t *testing.T) *http.Client {
	t.Helper()
	socket := strings.TrimPrefix(testenv.Engine(t), "unix://")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestAnEngineThatKnowsNothingOfTheMeshPullsThroughTheProxy(t *testing.T) {
	t.Parallel()
	engine := engineClient(t)
	store, proxy := registrytest.Start(t), startProxy(t)
	image := imageFor("linux", "amd64")
	pushed, err := store.Client(t).PushImage(t.Context(), "modules/web/server", image)
	if err != nil {
		t.Fatal(err)
	}
	config := store.Config()
	config.Token = store.Token("modules/*", "pull")
	if err := proxy.Update(config); err != nil {
		t.Fatal(err)
	}
	reference := proxy.Address() + "/modules/web/server@" + pushed.Digest
	pull := get(t, engine, "POST", "http://engine/images/create?fromImage="+url.QueryEscape(reference), "")
	said := must(io.ReadAll(pull.Body))
	if pull.StatusCode != http.StatusOK || strings.Contains(string(said), `"error"`) {
		t.Fatalf("pull: %s: %s", pull.Status, said)
	}
	inspect := get(t, engine, "GET", "http://engine/images/"+reference+"/json", "")
	if text := must(io.ReadAll(inspect.Body)); inspect.StatusCode != http.StatusOK || !strings.Contains(string(text), pushed.Digest) {
		t.Errorf("inspect: %s: %s", inspect.Status, text)
	}
	if gone := get(t, engine, "DELETE", "http://engine/images/"+reference+"?force=1", ""); gone.StatusCode != http.StatusOK {
		t.Errorf("remove: %s", gone.Status)
	}
}
