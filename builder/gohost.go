package builder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/mesh-control/mesh/builder/archive"
)

// goFlags make a program a function of its source and the compiler's version.
var goFlags = []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid="}

// goEnvironment is all a Go command sees, whatever the machine's is.
func goEnvironment(network bool, proxy, vendored string) []string {
	if proxy == "" {
		proxy = "https://proxy.golang.org,direct"
	}
	if !network {
		proxy = "off"
	}
	return []string{
		"GOENV=off", "GOWORK=off", "GOTOOLCHAIN=local", "GOTELEMETRY=off", "GO111MODULE=on", "GOFLAGS=-mod=" + vendored + " -modcacherw",
		"GOPROXY=" + proxy, "GOSUMDB=off", // go.sum decides: -mod=readonly takes nothing that is not in it
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + runtime.GOARCH, "LANG=C", "LC_ALL=C", "TZ=UTC",
	}
}

// moduleMode is vendor for source that brings its dependencies along.
func moduleMode(source []archive.Entry) string {
	for _, e := range source {
		if e.Name == "vendor/modules.txt" {
			return "vendor"
		}
	}
	return "readonly"
}

// HostGo compiles with the machine's own Go, in an environment of ours. It cannot keep the
// network from the compiler; it takes the module proxy away from it.
type HostGo struct {
	Program  string // path of the go command
	Cache    string // GOCACHE, kept between builds: keyed by the content of all that goes in
	ModCache string // GOMODCACHE, kept between builds; what is in it is checked against go.sum
	Proxy    string // GOPROXY while dependencies are fetched; "" is Go's default
	CABundle string // file of certificates for that, "" is the system's
}

// Version implements [Toolchain].
func (h HostGo) Version(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, h.Program, "env", "GOVERSION")
	cmd.Env = append(goEnvironment(false, "", "readonly"), "HOME=/nonexistent", "GOCACHE=off", "PATH="+filepath.Dir(h.Program))
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s env: %w", h.Program, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Compile implements [Toolchain].
func (h HostGo) Compile(ctx context.Context, c Compilation) error {
	src := filepath.Join(c.Scratch, "src")
	if err := writeOut(c.Source, src); err != nil {
		return packFailure(err)
	}
	home, tmp := filepath.Join(c.Scratch, "home"), filepath.Join(c.Scratch, "tmp")
	for _, dir := range []string{home, tmp, h.Cache, h.ModCache} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	env := []string{
		"HOME=" + home, "TMPDIR=" + tmp, "PATH=" + filepath.Dir(h.Program) + ":/usr/bin:/bin", "GOPATH=" + filepath.Join(home, "go"),
		"GOCACHE=" + h.Cache, "GOMODCACHE=" + h.ModCache,
	}
	if h.CABundle != "" {
		env = append(env, "SSL_CERT_FILE="+h.CABundle)
	}
	mode := moduleMode(c.Source)
	fetch := []string{"list", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", c.Package}
	if err := h.run(ctx, src, append(env, goEnvironment(true, h.Proxy, mode)...), fetch, c.Log); err != nil {
		return fmt.Errorf("fetch dependencies: %w", err)
	}
	build := append(append([]string{}, goFlags...), "-o", c.Out+string(filepath.Separator), c.Package)
	return h.run(ctx, src, append(env, goEnvironment(false, "", mode)...), build, c.Log)
}

// writeOut writes entries to disk by way of the archive rules, which bound where they land.
func writeOut(entries []archive.Entry, dir string) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(archive.Pack(w, entries)) }()
	defer r.Close()
	return archive.Unpack(r, dir, 1<<62, 0)
}

// run runs the go command as a process group that ends with the context, and with us.
func (h HostGo) run(ctx context.Context, dir string, env, args []string, log func(string)) error {
	cmd := exec.CommandContext(ctx, h.Program, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			if line := strings.TrimSpace(s.Text()); line != "" {
				log(line)
			}
		}
		_, _ = io.Copy(io.Discard, r)
	}()
	// The death signal is bound to the thread that starts the process.
	runtime.LockOSThread()
	err := cmd.Run()
	runtime.UnlockOSThread()
	w.Close()
	<-lines
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("go %s ended with status %d", args[0], exit.ExitCode())
	}
	return err
}
