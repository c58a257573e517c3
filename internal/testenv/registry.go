package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mesh-control/mesh/internal/foundation"
)

// RegistryConfig says how Debian's registry is started. Files are PEM.
type RegistryConfig struct {
	Dir         string // of the store; "" is a fresh one
	Certificate string // file; what the server shows
	Key         string // file
	TokenRoots  string // file; what signed the certificates in tokens. "" lets everybody do everything
}

// TokenIssuer and TokenService are what tokens for a [DockerRegistry] say of themselves.
const (
	TokenIssuer  = "mesh"
	TokenService = "mesh"
)

// DockerRegistry is the distribution project's registry 2.8 as Debian packages it: the server
// behind the public image "registry".
type DockerRegistry struct {
	Address string // 127.0.0.1:port
	Dir     string // of the store
	process *process
}

// StartDockerRegistry starts a registry that ends with the test.
func StartDockerRegistry(t testing.TB, config RegistryConfig) *DockerRegistry {
	t.Helper()
	skipShort(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	registry, err := startDockerRegistry(ctx, config)
	if registry != nil {
		t.Cleanup(registry.process.kill)
	}
	if err != nil {
		t.Fatalf("testenv: docker-registry: %v", err)
	}
	return registry
}

// Signal sends a signal to the running program, SIGSTOP and SIGCONT for instance.
func (r *DockerRegistry) Signal(signal syscall.Signal) error {
	return r.process.cmd.Process.Signal(signal)
}

// Kill ends the program, for a test that goes on with its store.
func (r *DockerRegistry) Kill() { r.process.kill() }

// Output is the end of what the registry has logged, for a failing test to show.
func (r *DockerRegistry) Output() string { return r.process.output.String() }

func startDockerRegistry(ctx context.Context, config RegistryConfig) (*DockerRegistry, error) {
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		return nil, fmt.Errorf("%w (apt-get install docker-registry)", err)
	}
	dir, err := servers.dir("registry")
	if err != nil {
		return nil, err
	}
	free, err := ports(1)
	if err != nil {
		return nil, err
	}
	r := &DockerRegistry{Address: fmt.Sprintf("127.0.0.1:%d", free[0]), Dir: config.Dir}
	if r.Dir == "" {
		r.Dir = filepath.Join(dir, "store")
	}
	file := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(file, config.text(r), 0o600); err != nil {
		return nil, err
	}
	r.process, err = servers.start(foundation.Command{
		Exec: program, Args: []string{"serve", file}, Dir: dir, Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir},
	}, syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	return r, r.process.until(ctx, r.listening)
}

func (c RegistryConfig) text(r *DockerRegistry) []byte {
	text := fmt.Sprintf(`version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: %q}
  delete: {enabled: true}
  redirect: {disable: true}
http:
  addr: %q
  relativeurls: true
  tls: {certificate: %q, key: %q}
`, r.Dir, r.Address, c.Certificate, c.Key)
	if c.TokenRoots != "" {
		text += fmt.Sprintf("auth:\n  token: {realm: %q, service: %q, issuer: %q, rootcertbundle: %q}\n",
			"https://"+r.Address+"/v2/", TokenService, TokenIssuer, c.TokenRoots)
	}
	return []byte(text)
}

func (r *DockerRegistry) listening(ctx context.Context) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.Address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
