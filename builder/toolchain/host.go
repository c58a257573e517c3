package toolchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mesh-control/mesh/builder/archive"
)

// Host compiles with the machine's own toolchain, in an environment of ours. A step without
// a network has none where the machine lets us take it away, which root always may.
type Host struct {
	Language string
	// Program is the path of go, node, cargo or python3 itself, as [Find] gives it; what else
	// belongs to the toolchain stands beside it.
	Program string
	// Caches are the directories kept between compilations, by the names of [CacheNames].
	Caches map[string]string
	// Proxy is where dependencies are fetched from: a GOPROXY, a registry of npm or of
	// crates, an index of Python packages. "" is the language's default.
	Proxy    string
	CABundle string // file of certificates for that; "" is the system's
	// Trusted lets code of the source run here, with all rights of this process: for one's
	// own source, in a builder started by hand.
	Trusted bool
}

// CacheNames lists the caches of a language.
func CacheNames(name string) []string { return languages[name].caches }

// finders give, on standard output, the program that stands behind a name on PATH, which
// may be a script that chooses between versions.
var finders = map[string][]string{
	Go:     {"go", "env", "GOROOT"},
	Node:   {"node", "-p", "process.execPath"},
	Rust:   {"rustc", "--print", "sysroot"},
	Python: {"python3", "-c", "import sys; print(sys.executable)"},
}

// ErrNotInstalled is returned by [Find] on a machine without the language's toolchain.
var ErrNotInstalled = errors.New("is not installed here")

// Find gives the program of a language's toolchain on this machine, with the environment of
// whoever asks.
func Find(ctx context.Context, name string) (string, error) {
	ask := finders[name]
	found, err := exec.LookPath(ask[0])
	if err != nil {
		return "", fmt.Errorf("toolchain for %s %w", name, ErrNotInstalled)
	}
	out, err := exec.CommandContext(ctx, found, ask[1:]...).Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", strings.Join(ask, " "), err)
	}
	at := strings.TrimSpace(string(out))
	switch name {
	case Go:
		at = filepath.Join(at, "bin", "go")
	case Rust:
		at = filepath.Join(at, "bin", "cargo")
	}
	if _, err := os.Stat(at); err != nil {
		return "", fmt.Errorf("toolchain for %s %w: %w", name, ErrNotInstalled, err)
	}
	return at, nil
}

func (h Host) path() string { return filepath.Dir(h.Program) + ":/usr/bin:/bin" }

// Version implements [Toolchain].
func (h Host) Version(ctx context.Context) (string, error) {
	l := languages[h.Language]
	var lines []string
	for _, ask := range l.asks {
		// A home that cannot hold anything: go keeps counters in it, npm its logs.
		env := append([]string{"HOME=/dev/null", "PATH=" + h.path(), "GOCACHE=off", "npm_config_logs_max=0", "npm_config_cache=/dev/null"}, steady...)
		if h.Language == Go {
			env = append(env, goEnvironment(false, "", "readonly")...)
		}
		cmd := exec.CommandContext(ctx, h.find(ask[0]), ask[1:]...)
		cmd.Env, cmd.Dir = env, "/"
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("run %s: %w", strings.Join(ask, " "), err)
		}
		lines = append(lines, strings.TrimSpace(string(out)))
	}
	return l.parse(lines)
}

// find gives the path of one of the toolchain's programs: beside the main one, else the
// system's.
func (h Host) find(program string) string {
	for _, dir := range filepath.SplitList(h.path()) {
		at := filepath.Join(dir, program)
		if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return at
		}
	}
	return filepath.Join(filepath.Dir(h.Program), program) // whose absence is then told
}

// Compile implements [Toolchain].
func (h Host) Compile(ctx context.Context, c Compilation) (Product, error) {
	at := place{
		src: filepath.Join(c.Scratch, "src"), out: filepath.Join(c.Scratch, "out"),
		home: filepath.Join(c.Scratch, "home"), tmp: filepath.Join(c.Scratch, "tmp"),
		cache: func(name string) string { return h.Caches[name] }, proxy: h.Proxy, certificates: h.CABundle,
	}
	j, err := plan(h.Language, c, at)
	if err != nil {
		return Product{}, err
	}
	if len(j.steps) == 0 {
		return j.finish(c.Source)
	}
	if j.runsCode != "" && !h.Trusted {
		return Product{}, &Error{
			Reason: ReasonUntrusted, Remedy: "start the builder with --toolchain container, or build by hand what you trust", Refused: true,
			Err: fmt.Errorf("compiling this bundle runs code of its own on the builder's machine: %s", j.runsCode),
		}
	}
	if err := h.lay(c, at); err != nil {
		return Product{}, err
	}
	for _, s := range j.steps {
		p := process{
			program: h.find(s.args[0]), args: s.args, dir: at.src, network: s.network,
			env: append(append([]string{"HOME=" + at.home, "TMPDIR=" + at.tmp, "PATH=" + h.path()}, steady...), s.env...),
		}
		if err := p.run(ctx, c.Log); err != nil {
			return Product{}, stepFailed(s, err)
		}
	}
	entries, err := walk(j.collect)
	if err != nil {
		return Product{}, err
	}
	return j.finish(entries)
}

// lay writes the source and makes the directories of a compilation.
func (h Host) lay(c Compilation, at place) error {
	if err := writeOut(c.Source, at.src); err != nil {
		return err
	}
	dirs := []string{at.out, at.home, at.tmp}
	for _, name := range CacheNames(h.Language) {
		dirs = append(dirs, h.Caches[name])
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// stepFailed is the error of a step that ran and failed; any other is nobody's source's.
func stepFailed(s step, err error) error {
	var exit *exitError
	if errors.As(err, &exit) {
		return fail(ReasonCompile, "the log has what "+s.args[0]+" said", "%s: %w", s.what, err)
	}
	var rule *archive.Refused
	if errors.As(err, &rule) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s: %w", s.what, err)
}

// exitError says that a command ended with a status that is not zero.
type exitError struct {
	program string
	status  int64
}

func (e *exitError) Error() string {
	if e.status == 137 {
		return fmt.Sprintf("%s was killed, as where memory is short", e.program)
	}
	return fmt.Sprintf("%s ended with status %d", e.program, e.status)
}
