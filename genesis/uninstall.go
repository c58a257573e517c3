package genesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/mesh-control/mesh/reconcile/host"
)

// Uninstall ends everything an installation under dir made and removes its files. What it
// does not know (an engine's own data, a clone somebody commits in) stays.
func Uninstall(ctx context.Context, dir string, out io.Writer) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	l := layout{dir}
	if !exists(l.path("genesis")) {
		return fmt.Errorf("uninstall: there is no installation in %s", dir)
	}
	in := &Installer{Dir: dir, Out: out}
	if exists(host.NewLayout(l.node()).ConfigFile()) {
		if err := in.mesh(ctx, "mesh-host", "stop", "--root", l.node(), "--services"); err != nil {
			return fmt.Errorf("uninstall: %w", err)
		}
		fmt.Fprintln(out, "ended the host and every container and service it made")
	}
	var problems []error
	for _, name := range []string{"node", "postgres", "broker", "registry", "programs", "operator.json", "addresses.sh", "genesis"} {
		problems = append(problems, removeTree(l.path(name)))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	fmt.Fprintln(out, "removed its files from "+dir)
	return nil
}

// removeTree removes also what a toolchain has made read-only.
func removeTree(path string) error {
	if os.RemoveAll(path) == nil {
		return nil
	}
	_ = filepath.WalkDir(path, func(at string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			_ = os.Chmod(at, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}
