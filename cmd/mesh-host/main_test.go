package main

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/host"
	"github.com/mesh-control/mesh/schema"
)

// The test program is mesh-host as well, and the service that the test declares.
const (
	programWord = "as-mesh-host"
	serviceWord = "as-service"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(serviceWord); address != "" {
		listen(address)
	}
	if len(os.Args) > 1 && os.Getenv(programWord) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// listen accepts and hangs up until it is killed.
func listen(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for {
		if conn, err := l.Accept(); err == nil {
			_ = conn.Close()
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// meshHost runs the program and gives what it printed.
func meshHost(t testing.TB, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), programWord+"=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(t testing.TB, args ...string) string {
	t.Helper()
	out, err := meshHost(t, args...)
	if err != nil {
		t.Fatalf("mesh-host %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func TestLifeOfANode(t *testing.T) {
	root := t.TempDir()
	var public host.PublicIdentity
	check(t, json.Unmarshal([]byte(must(t, "init", "--root", root, "--name", "n1")), &public))
	if public.Node != "n1" || len(public.Identity) != ed25519.PublicKeySize || public.Fingerprint != pki.KeyFingerprint(public.Sealing) {
		t.Errorf("init prints %+v", public)
	}
	key, private, err := ed25519.GenerateKey(nil)
	check(t, err)
	layout := host.NewLayout(root)
	check(t, host.SaveConfig(layout.ConfigFile(), host.Config{Mesh: "test", Node: "n1", DeclarationKey: key}))

	port := freePort(t)
	d := declaration(port)
	check(t, pki.SignDeclaration(private, &d))
	file := filepath.Join(root, "declaration.json")
	data, err := json.Marshal(d)
	check(t, err)
	check(t, os.WriteFile(file, data, 0o600))

	if out := must(t, "plan", "--root", root, "--file", file); !strings.Contains(out, "create file m/f") {
		t.Errorf("plan prints %q", out)
	}
	if _, err := os.Stat(filepath.Join(root, "etc")); err == nil {
		t.Error("a plan changed something")
	}
	if out := must(t, "apply", "--root", root, "--file", file); !strings.Contains(out, "applied") {
		t.Errorf("apply prints %q", out)
	}
	answers := func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	if !answers() {
		t.Error("the service ended with apply")
	}

	must(t, "run", "--root", root, "--detach")
	t.Cleanup(func() { _, _ = meshHost(t, "stop", "--root", root, "--services") })
	if out, err := meshHost(t, "run", "--root", root); err == nil || !strings.Contains(out, "already running") {
		t.Errorf("a second host: %v %s", err, out)
	}
	if out := must(t, "status", "--root", root); !strings.Contains(out, "generation 1 applied") || !strings.Contains(out, "running    service    m/s") {
		t.Errorf("status prints %q", out)
	}
	if out := must(t, "plan", "--root", root); !strings.Contains(out, "nothing to do") {
		t.Errorf("plan prints %q", out)
	}
	d.Generation, d.Resources[0].Content = 2, &[]string{"two"}[0]
	check(t, pki.SignDeclaration(private, &d))
	data, err = json.Marshal(d)
	check(t, err)
	check(t, os.WriteFile(file, data, 0o600))
	must(t, "apply", "--root", root, "--file", file)
	if got, _ := os.ReadFile(filepath.Join(root, "etc/mesh/m/f")); string(got) != "two" {
		t.Errorf("the file holds %q", got)
	}

	// Killed, and nothing it started ends.
	var runner struct{ Pid int }
	text, err := os.ReadFile(filepath.Join(layout.State, "host.pid"))
	check(t, err)
	check(t, json.Unmarshal(text, &runner))
	check(t, syscall.Kill(runner.Pid, syscall.SIGKILL))
	deadline := time.Now().Add(10 * time.Second)
	for errors.Is(syscall.Kill(runner.Pid, 0), nil) && time.Now().Before(deadline) {
		if _, err := meshHost(t, "stop", "--root", root); err == nil {
			break
		}
	}
	if !answers() {
		t.Error("the service ended with the host")
	}
	must(t, "run", "--root", root, "--detach")
	if out := must(t, "status", "--root", root); !strings.Contains(out, "generation 2 applied") {
		t.Errorf("status prints %q", out)
	}
	must(t, "stop", "--root", root)
	if !answers() {
		t.Error("the service ended with a stop of the host")
	}
	if out := must(t, "stop", "--root", root, "--services"); !strings.Contains(out, "ended") {
		t.Errorf("stop prints %q", out)
	}
	if answers() {
		t.Error("the service runs on")
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// declaration of a file and of a service, which is this program.
func declaration(port int) schema.Declaration {
	one := "one"
	return schema.Declaration{
		Schema: schema.Version, Node: "n1", Epoch: 1, Generation: 1, Modules: map[string]string{},
		Resources: []schema.Resource{
			{ID: "m/f", Type: schema.TypeFile, Path: "/etc/mesh/m/f", Content: &one},
			{
				ID: "m/s", Type: schema.TypeService, Exec: os.Args[0],
				Env:    map[string]string{serviceWord: fmt.Sprintf("127.0.0.1:%d", port)},
				Health: &schema.Health{TCP: fmt.Sprintf("127.0.0.1:%d", port)},
			},
		},
		Host:      schema.HostSection{Config: map[string]json.RawMessage{}, Telemetry: map[string]json.RawMessage{}, Access: map[string]json.RawMessage{}},
		Devices:   schema.DeviceSection{Assignments: []json.RawMessage{}},
		Instances: []json.RawMessage{},
		Site:      schema.SiteSection{CacheImages: []string{}},
	}
}
