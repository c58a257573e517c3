package genesis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mesh-control/mesh/internal/foundation"
)

// Installer raises one mesh on this machine.
type Installer struct {
	Dir      string // everything of the installation lies here
	Mesh     string // the mesh's name
	Node     string // this machine's name in it
	Address  string // where this machine is reached by containers and other machines; "" finds the engine's bridge
	Engine   string // unix:///path of the container engine's socket
	Source   string // checkout the mesh's own modules are assembled from
	Programs string // directory of the mesh's programs
	Carried  string // cache of carried images; "" is Dir/carried
	Port     int    // the first that may be taken; 0 is 7400
	Out      io.Writer

	ports     ports
	keys      *keys
	toolchain string // reference of the carried Go toolchain
}

func (in *Installer) layout() layout { return layout{in.Dir} }

// Install runs every phase. It may be run again after any end.
func (in *Installer) Install(ctx context.Context) error {
	dir, err := filepath.Abs(in.Dir)
	if err != nil {
		return err
	}
	in.Dir = dir
	return in.runPhases(ctx, []phase{
		{"preflight", in.preflight},
		{"keys", in.makeKeys},
		{"foundation", in.raiseFoundation},
		{"database", in.prepareDatabase},
		{"carry", in.carry},
		{"source", in.assembleSource},
		{"init build", in.initBuild},
		{"hand-over", in.handOver},
		{"watch", in.watchSource},
		{"builder", in.assignBuilder},
		{"proof", in.prove},
	})
}

// preflight checks everything that would fail later, and reports all of it at once.
func (in *Installer) preflight(ctx context.Context) (string, error) {
	var problems []error
	if err := os.MkdirAll(in.Dir, 0o755); err != nil {
		return "", err
	}
	if in.Address == "" {
		var ok bool
		if in.Address, ok = foundation.BridgeAddress(); !ok {
			in.Address = "127.0.0.1"
		}
	}
	if net.ParseIP(in.Address) == nil {
		problems = append(problems, fmt.Errorf("the address %q is not an IP address; give one with --address", in.Address))
	}
	socket := strings.TrimPrefix(in.Engine, "unix://")
	if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket); err != nil {
		problems = append(problems, fmt.Errorf("no container engine answers at %s; start one, or name its socket with --engine", in.Engine))
	} else {
		conn.Close()
	}
	for _, program := range []string{"git", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			problems = append(problems, fmt.Errorf("%s is not installed; apt-get install %s", program, map[string]string{"git": "git", "go": "golang"}[program]))
		}
	}
	for _, program := range []string{"mesh-host", "mesh-registry", "mesh-controller"} {
		if !exists(filepath.Join(in.Programs, program)) {
			problems = append(problems, fmt.Errorf("%s is not in %s; make build makes it", program, in.Programs))
		}
	}
	if os.Getuid() == 0 {
		if err := reachable(in.Dir); err != nil {
			problems = append(problems, err)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return "", err
	}
	var err error
	in.ports, err = choosePorts(in.layout(), in.Address, cmp.Or(in.Port, firstPort))
	return fmt.Sprintf("node %s at %s, ports from %d", in.Node, in.Address, in.ports.Registry), err
}

// reachable checks that another account can reach dir: PostgreSQL refuses to run as root.
func reachable(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 == 0 {
			return fmt.Errorf("PostgreSQL runs as an account of its own and cannot reach %s (mode %04o); chmod o+x it, or give another --dir", at, info.Mode().Perm())
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

func (in *Installer) makeKeys(context.Context) (string, error) {
	l := in.layout()
	k, err := makeKeys(l, in.Mesh)
	if err != nil {
		return "", err
	}
	in.keys = k
	if err := k.writeOperator(l, in.Mesh, in.controllerURL()); err != nil {
		return "", err
	}
	for _, program := range []string{"mesh-host", "mesh-registry", "mesh-controller"} {
		if err := installProgram(filepath.Join(in.Programs, program), l.program(program)); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(l.machine(repositories), 0o755); err != nil {
		return "", err
	}
	return "authority, declaration key, operator credential (operator.json)", in.writeAddresses()
}

// writeAddresses leaves, for scripts, where things are.
func (in *Installer) writeAddresses() error {
	text := fmt.Sprintf("address=%s\ngit_url=%s\nrepositories='%s'\ncontroller_port=%d\nproxy_port=%d\n",
		in.Address, in.gitURL(), in.layout().machine(repositories), in.ports.Controller, in.ports.Proxy)
	return writeFile(in.layout().path("addresses.sh"), []byte(text), 0o644)
}

// installProgram replaces a program by rename, so that one that runs keeps running.
func installProgram(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFile(to, text, 0o755)
}

func (in *Installer) controllerURL() string {
	return fmt.Sprintf("https://%s:%d", in.Address, in.ports.Controller)
}

func (in *Installer) gitURL() string { return fmt.Sprintf("http://%s:%d", in.Address, in.ports.Git) }

func (in *Installer) sourceURL() string { return in.gitURL() + "/mesh.git" }
func (in *Installer) sourceDir() string {
	return filepath.Join(in.layout().machine(repositories), "mesh.git")
}
func (in *Installer) listen(port int) []string {
	addresses := []string{fmt.Sprintf("127.0.0.1:%d", port)}
	if in.Address != "127.0.0.1" {
		addresses = append(addresses, fmt.Sprintf("%s:%d", in.Address, port))
	}
	return addresses
}

func (in *Installer) hosts() []string {
	if in.Address == "127.0.0.1" {
		return []string{"127.0.0.1"}
	}
	return []string{"127.0.0.1", in.Address}
}
