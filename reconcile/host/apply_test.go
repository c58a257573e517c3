package host_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/schema"
)

func get(t testing.TB, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	data, _ := io.ReadAll(response.Body)
	return string(data)
}

func TestAllFiveTypesApplyAndSettle(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	program := app(t)
	source, digest := n.pushArchive(map[string]string{"bin/app*": program, "index.html": "archived"})
	inContainer, inService := freePort(t), freePort(t)
	resources := []schema.Resource{
		{ID: "web/data", Type: schema.TypeDirectory, Path: "/var/lib/mesh/web", Mode: "0750"},
		{ID: "web/config", Type: schema.TypeFile, Path: "/etc/mesh/web/text", Content: text("from a file"), After: []string{"web/data"}},
		{ID: "web/site", Type: schema.TypeArchive, Path: "/srv/site", Source: source, Digest: digest},
		{
			ID: "web/server", Type: schema.TypeContainer, Image: n.image, Command: []string{"serve", ":80", "/config/text"},
			Mounts: []schema.Mount{{Source: "/etc/mesh/web", Target: "/config", ReadOnly: true}},
			Ports:  []schema.Port{{Container: 80, Host: inContainer, Address: "127.0.0.1"}},
			Health: &schema.Health{HTTP: fmt.Sprintf("http://127.0.0.1:%d/", inContainer)}, After: []string{"web/config"},
		},
		{
			ID: "web/daemon", Type: schema.TypeService, Exec: "/srv/site/bin/app",
			Args:   []string{"serve", fmt.Sprintf("127.0.0.1:%d", inService), "/srv/site/index.html"},
			Health: &schema.Health{TCP: fmt.Sprintf("127.0.0.1:%d", inService)}, After: []string{"web/site"},
		},
	}
	n.mustApply(resources...)
	if got := get(t, fmt.Sprintf("http://127.0.0.1:%d/", inContainer)); got != "from a file" {
		t.Errorf("the container answers %q", got)
	}
	if got := get(t, fmt.Sprintf("http://127.0.0.1:%d/", inService)); got != "archived" {
		t.Errorf("the service answers %q", got)
	}
	if info, err := os.Stat(n.path("/var/lib/mesh/web")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("directory: %v %v", info, err)
	}
	report := n.host.Look(context.Background())
	for _, r := range report.Resources {
		if r.Phase != host.PhaseApplied && r.Phase != host.PhaseRunning {
			t.Errorf("%s is %s: %s", r.ID, r.Phase, r.Message)
		}
	}
	if report.Applied != 1 || report.Outcome != host.OutcomeApplied {
		t.Errorf("applied %d, outcome %s", report.Applied, report.Outcome)
	}
	steps, err := n.host.Plan(context.Background())
	check(t, err)
	if len(steps) != 0 {
		t.Errorf("after an apply there is still to do: %v", steps)
	}
	before := n.container("web/server")
	n.mustApply() // nothing is declared any more
	if _, err := n.engine.Inspect(context.Background(), before.ID); err == nil {
		t.Error("the container is still there")
	}
	if got := get(t, fmt.Sprintf("http://127.0.0.1:%d/", inService)); !strings.Contains(got, "refused") {
		t.Errorf("the service still answers %q", got)
	}
	for _, gone := range []string{"/etc/mesh/web/text", "/srv/site"} {
		if _, err := os.Lstat(n.path(gone)); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
	if _, err := os.Stat(n.path("/var/lib/mesh/web")); err != nil {
		t.Errorf("the data directory went: %v", err)
	}
}
