package carried

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// NodeReference is the public image that [Node] stands for, without its tag, which is the
// major version.
const NodeReference = "docker.io/library/node"

// Node is the Node that this machine's `node` is, with its npm and the shell npm runs
// scripts in.
func Node(ctx context.Context, cache string) (Image, error) {
	out, err := output(ctx, "node", "-p", "process.execPath + ' ' + process.versions.node")
	if err != nil {
		return Image{}, fmt.Errorf("carry Node: %w; apt-get install nodejs npm", err)
	}
	program, version, _ := strings.Cut(strings.TrimSpace(out), " ")
	major, _, _ := strings.Cut(version, ".")
	reference := NodeReference + ":" + major
	npm, err := findNPM(program)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	about, err := os.ReadFile(filepath.Join(npm, "package.json"))
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	key, err := packages(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	shell, err := findBusybox()
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", reference, err)
	}
	return cached(cache, "node", key+program+version+string(about), reference, func(dir string) error {
		t := base()
		if err := t.busybox(ctx, shell); err != nil {
			return err
		}
		t.file("usr/local/bin/node", program, 0o755)
		if err := t.libraries(ctx, []string{program}); err != nil {
			return err
		}
		if err := t.copied(npm, "usr/local/lib/node_modules/npm", func(name string) bool {
			return name == "docs" || name == "man" || name == ".npmrc"
		}); err != nil {
			return err
		}
		t.link("usr/local/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")
		t.link("usr/local/bin/npx", "../lib/node_modules/npm/bin/npx-cli.js")
		if err := t.certificates(); err != nil {
			return err
		}
		return write(dir, t, v1.Config{
			Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"node"},
		})
	})
}

// findNPM gives npm's directory: where Node's own distribution has it, or Debian's package.
func findNPM(node string) (string, error) {
	for _, dir := range []string{filepath.Join(filepath.Dir(node), "../lib/node_modules/npm"), "/usr/share/nodejs/npm"} {
		if _, err := os.Stat(filepath.Join(dir, "bin/npm-cli.js")); err == nil {
			return filepath.EvalSymlinks(dir)
		}
	}
	return "", errors.New("npm is not installed; apt-get install npm")
}
