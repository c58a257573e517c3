package genesis

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mesh-control/mesh/schema"
)

// AssembleSource makes, in the bare repository, a commit in which every module of the mesh's
// own checkout stands whole under modules/<name>.
//
// Everything a module has built is made from files under its own path, while controller,
// catalogue and builder share one Go module. So a bundle whose path has no go.mod gets a copy
// of the checkout's go.mod, go.sum and of exactly the packages its program is made of. A
// module's tree then changes when, and only when, something it is built from does: the rule
// that makes it behind stays the ordinary one. See docs/design/source-tree.md.
//
// Modules named in without are left out: a foundation of processes has no use for the modules
// of its servers, whose images it may have no registry to borrow from.
//
// It answers the commit at the head. The same checkout gives the same tree, and no commit.
func AssembleSource(ctx context.Context, checkout, bare string, without ...string) (string, error) {
	work, err := os.MkdirTemp("", "mesh-source-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	entries, err := os.ReadDir(filepath.Join(checkout, "modules"))
	if err != nil {
		return "", fmt.Errorf("assemble source: %s is no checkout of the mesh: %w", checkout, err)
	}
	for _, entry := range entries {
		dir := filepath.Join("modules", entry.Name())
		if !entry.IsDir() || slices.Contains(without, entry.Name()) || !exists(filepath.Join(checkout, dir, "module.json")) {
			continue
		}
		if err := assembleModule(ctx, checkout, dir, work); err != nil {
			return "", fmt.Errorf("assemble module %s: %w", entry.Name(), err)
		}
	}
	return commitTree(ctx, work, bare)
}

func assembleModule(ctx context.Context, checkout, dir, work string) error {
	if err := copyTree(filepath.Join(checkout, dir), filepath.Join(work, dir)); err != nil {
		return err
	}
	file := filepath.Join(checkout, dir, "module.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	module, err := schema.ParseModule(filepath.Join(dir, "module.json"), text)
	if err != nil {
		return err
	}
	for _, artifact := range module.Artifacts {
		at := filepath.Join(work, dir, artifact.Path)
		if artifact.Kind == schema.KindBundle && artifact.Language == "go" && !exists(filepath.Join(at, "go.mod")) {
			if err := copyProgram(ctx, checkout, artifact.Package, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyProgram copies what program (a package such as ./cmd/x) is compiled from.
func copyProgram(ctx context.Context, checkout, program, to string) error {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,GoFiles,EmbedFiles,Module", program)
	list.Dir = checkout
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false")
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list %s: %w: %s", program, err, strings.TrimSpace(stderr.String()))
	}
	files := []string{filepath.Join(checkout, "go.mod"), filepath.Join(checkout, "go.sum"), filepath.Join(checkout, "LICENSE")}
	decoder := json.NewDecoder(bytes.NewReader(out))
	for decoder.More() {
		var pkg struct {
			Dir                 string
			GoFiles, EmbedFiles []string
			Module              *struct{ Main bool }
		}
		if err := decoder.Decode(&pkg); err != nil {
			return err
		}
		if pkg.Module == nil || !pkg.Module.Main {
			continue
		}
		for _, name := range slices.Concat(pkg.GoFiles, pkg.EmbedFiles) {
			files = append(files, filepath.Join(pkg.Dir, name))
		}
	}
	root, err := filepath.EvalSymlinks(checkout)
	if err != nil {
		return err
	}
	for _, file := range files {
		relative, err := relativeTo(file, checkout, root)
		if err != nil {
			return err
		}
		if err := copyFile(file, filepath.Join(to, relative)); err != nil {
			return err
		}
	}
	return nil
}

func relativeTo(file string, roots ...string) (string, error) {
	for _, root := range roots {
		if absolute, err := filepath.Abs(root); err == nil {
			root = absolute
		}
		if absolute, err := filepath.Abs(file); err == nil {
			file = absolute
		}
		if relative, err := filepath.Rel(root, file); err == nil && filepath.IsLocal(relative) {
			return relative, nil
		}
	}
	return "", fmt.Errorf("%s lies outside the checkout", file)
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		switch {
		case entry.IsDir():
			return os.MkdirAll(target, 0o755)
		case entry.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		default:
			return copyFile(path, target)
		}
	})
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, mode)
}

// commitTree makes work's files the tree of a commit at the head of main in bare.
func commitTree(ctx context.Context, work, bare string) (string, error) {
	if !exists(filepath.Join(bare, "HEAD")) {
		if _, err := git(ctx, "", "init", "-q", "--bare", "--initial-branch=main", bare); err != nil {
			return "", err
		}
	}
	index := filepath.Join(work, ".index")
	in := func(args ...string) (string, error) {
		return gitEnv(ctx, []string{"GIT_DIR=" + bare, "GIT_WORK_TREE=" + work, "GIT_INDEX_FILE=" + index}, work, args...)
	}
	if _, err := in("add", "--force", "--all", "modules"); err != nil {
		return "", err
	}
	tree, err := in("write-tree")
	if err != nil {
		return "", err
	}
	head, headErr := in("rev-parse", "--verify", "-q", "refs/heads/main^{commit}")
	if headErr == nil {
		if current, err := in("rev-parse", head+"^{tree}"); err == nil && current == tree {
			return head, nil
		}
	}
	args := []string{"commit-tree", tree, "-m", "The mesh's own modules"}
	if headErr == nil {
		args = append(args, "-p", head)
	}
	commit, err := in(args...)
	if err != nil {
		return "", err
	}
	_, err = in("update-ref", "refs/heads/main", commit)
	return commit, err
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	return gitEnv(ctx, nil, dir, args...)
}

// gitEnv runs git away from the machine's and the user's configuration.
func gitEnv(ctx context.Context, env []string, dir string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "git", args...)
	command.Dir = dir
	command.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C",
		"GIT_AUTHOR_NAME=mesh", "GIT_AUTHOR_EMAIL=mesh@localhost", "GIT_COMMITTER_NAME=mesh", "GIT_COMMITTER_EMAIL=mesh@localhost",
	}, env...)
	out, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
