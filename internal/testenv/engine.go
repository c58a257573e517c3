package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/foundation"
)

// EngineVariable names a container engine to test with, as unix:///path.
const EngineVariable = "MESH_TEST_DOCKER"

// defaultEngine is where an engine of the machine listens.
const defaultEngine = "unix:///var/run/docker.sock"

// Engine is the address of a container engine that speaks Docker's API: the one
// EngineVariable names, else the machine's, else a dockerd of this test binary's own.
// Everybody may share it: use names of your own, and remove what you made.
func Engine(t testing.TB) string {
	t.Helper()
	return servers.engine.get(t, func(ctx context.Context) (string, error) {
		if address := os.Getenv(EngineVariable); address != "" {
			if err := ping(ctx, address); err != nil {
				return "", fmt.Errorf("container engine of %s: %w", EngineVariable, err)
			}
			return address, nil
		}
		if ping(ctx, defaultEngine) == nil {
			return defaultEngine, nil
		}
		return startEngine(ctx)
	})
}

// BridgeAddress is the machine's address on the bridge of Engine, which containers and tests
// both reach.
func BridgeAddress(t testing.TB) string {
	t.Helper()
	Engine(t)
	address, ok := foundation.BridgeAddress()
	if !ok {
		t.Fatal("testenv: the engine has no bridge")
	}
	return address
}

func startEngine(ctx context.Context) (string, error) {
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		return "", errors.New("find a container engine: none runs and there is no dockerd; install it with: apt install docker.io")
	}
	if os.Geteuid() != 0 {
		return "", fmt.Errorf("find a container engine: none runs, and only root can start one; name one in %s", EngineVariable)
	}
	dir, err := servers.dir("docker")
	if err != nil {
		return "", err
	}
	address := "unix://" + filepath.Join(dir, "s.sock")
	server, err := servers.start(foundation.Command{
		Exec: dockerd, Dir: dir, Env: os.Environ(),
		Args: []string{
			"--host=" + address, "--data-root=" + filepath.Join(dir, "data"), "--exec-root=" + filepath.Join(dir, "exec"),
			"--pidfile=" + filepath.Join(dir, "pid"),
		},
	}, syscall.SIGTERM)
	if err != nil {
		return "", err
	}
	return address, server.until(ctx, func(ctx context.Context) error {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			err := ping(ctx, address)
			if err == nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return errors.Join(context.Cause(ctx), err)
			case <-ticker.C:
			}
		}
	})
}

// ping asks the engine whether it is there.
func ping(ctx context.Context, address string) error {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok {
		return fmt.Errorf("%s is not a unix:// address", address)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/_ping", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the engine says %s", response.Status)
	}
	return nil
}
