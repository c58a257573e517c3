package genesis

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// layout names every file of an installation under its one directory.
type layout struct{ dir string }

func (l layout) path(elements ...string) string {
	return filepath.Join(append([]string{l.dir}, elements...)...)
}
func (l layout) keys(name string) string    { return l.path("genesis", "keys", name) }
func (l layout) journal() string            { return l.path("genesis", "journal.jsonl") }
func (l layout) ports() string              { return l.path("genesis", "ports.json") }
func (l layout) program(name string) string { return l.path("programs", name) }
func (l layout) node() string               { return l.path("node") }

// machine is where a path of a declaration is on this machine: beneath the node's root.
func (l layout) machine(declared string) string { return l.path("node", declared) }

// Operator is the context file the operator's commands use.
func (l layout) operator() string { return l.path("operator.json") }

// repositories is the directory of bare repositories the catalogue serves and watches.
const repositories = "/var/lib/mesh/repositories"

// ports of one installation, all unprivileged, chosen once.
type ports struct {
	Registry   int `json:"registry"`
	Postgres   int `json:"postgres"`
	Broker     int `json:"broker"`
	Management int `json:"management"`
	Dist       int `json:"dist"`
	EPMD       int `json:"epmd"`
	Proxy      int `json:"proxy"`
	Git        int `json:"git"`
	Controller int `json:"controller"`
	Metrics    int `json:"metrics"` // the catalogue's
	Builder    int `json:"builder"` // its metrics
}

const firstPort = 7400

// choosePorts reads the ports chosen before, and takes the first free ones for those that were
// not: an earlier release may have had fewer.
func choosePorts(l layout, address string, first int) (ports, error) {
	var p ports
	text, err := os.ReadFile(l.ports())
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return p, err
	}
	all := []*int{&p.Registry, &p.Postgres, &p.Broker, &p.Management, &p.Dist, &p.EPMD, &p.Proxy, &p.Git, &p.Controller, &p.Metrics, &p.Builder}
	next := first
	for _, port := range all {
		next = max(next, *port+1)
	}
	chosen := false
	for _, port := range all {
		if *port != 0 {
			continue
		}
		for ; !free(address, next); next++ {
			if next > first+1000 {
				return p, fmt.Errorf("choose ports: none free between %d and %d", first, next)
			}
		}
		*port, chosen = next, true
		next++
	}
	if !chosen {
		return p, nil
	}
	return p, writeJSON(l.ports(), p, 0o600)
}

func free(address string, port int) bool {
	for _, host := range []string{"127.0.0.1", address} {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return false
		}
		listener.Close()
	}
	return true
}

func writeJSON(path string, value any, mode os.FileMode) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(text, '\n'), mode)
}

// writeFile replaces a file whole, with its mode right from the first byte.
func writeFile(path string, text []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
