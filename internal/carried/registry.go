package carried

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// RegistryReference is the public image that [Registry] stands for.
const RegistryReference = "docker.io/library/registry:2.8"

const registryConfig = `version: 0.1
storage:
  filesystem:
    rootdirectory: /var/lib/registry
http:
  addr: :5000
`

// Registry is the distribution project's registry. Its package brings a service that would
// run on the machine, so it is fetched and taken apart instead of installed.
func Registry(ctx context.Context, cache string) (Image, error) {
	key, err := packages(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", RegistryReference, err)
	}
	return cached(cache, "registry", key, RegistryReference, func(dir string) error {
		scratch, err := os.MkdirTemp("", "mesh-carried-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(scratch)
		program, err := fetchRegistry(ctx, scratch)
		if err != nil {
			return err
		}
		t := base()
		t.file("usr/bin/registry", program, 0o755)
		t.text("etc/docker/registry/config.yml", registryConfig, 0o644)
		t.dir("var/lib/registry", 0o755)
		if err := t.libraries(ctx, []string{program}); err != nil {
			return err
		}
		return write(dir, t, v1.Config{
			Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"registry"}, Cmd: []string{"serve", "/etc/docker/registry/config.yml"},
			ExposedPorts: map[string]struct{}{"5000/tcp": {}},
		})
	})
}

func fetchRegistry(ctx context.Context, scratch string) (string, error) {
	const installedProgram = "/usr/bin/docker-registry"
	if _, err := os.Stat(installedProgram); err == nil {
		return installedProgram, nil
	}
	if _, err := outputIn(ctx, scratch, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", "docker-registry"); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(scratch, "docker-registry_*.deb"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("apt-get downloaded %d files of docker-registry", len(files))
	}
	if _, err := output(ctx, "dpkg-deb", "-x", files[0], filepath.Join(scratch, "x")); err != nil {
		return "", err
	}
	return filepath.Join(scratch, "x", installedProgram), nil
}
