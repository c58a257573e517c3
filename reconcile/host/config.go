package host

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mesh-control/mesh/schema"
)

// Config is what a host has to be told. It is a JSON file, 0600, written when the node joins.
type Config struct {
	Mesh    string `json:"mesh"`
	Node    string `json:"node"`
	Address string `json:"address,omitempty"` // where others reach this node
	// Broker is the node's account; without one only local commands are obeyed.
	Broker *schema.Credential `json:"broker,omitempty"`
	// DeclarationKey is the ed25519 public key that signs declarations.
	DeclarationKey []byte `json:"declarationKey"`
	// Engine is the container engine's address, as "unix:///run/docker.sock"; "" is none.
	Engine string `json:"engine,omitempty"`
	// Epoch is the lowest that is obeyed.
	Epoch int64 `json:"epoch,omitempty"`
	// ProxyPort of 127.0.0.1, where the engine finds the mesh's registry; 0 is 5055.
	ProxyPort int `json:"proxyPort,omitempty"`
	// ReportSeconds between two reports when nothing changes; 0 is 15.
	ReportSeconds int `json:"reportSeconds,omitempty"`

	Version string `json:"-"`
	// Fault is called at every [Point]; tests end the program there.
	Fault func(Point) `json:"-"`
}

// The defaults of a [Config].
const (
	defaultProxyPort   = 5055
	defaultReportEvery = 15 * time.Second
	// How often reality is looked at when nothing says that it has changed.
	surveyEvery = 10 * time.Second
)

// LoadConfig reads a configuration.
func LoadConfig(name string) (Config, error) {
	var c Config
	if err := readJSON(name, &c); err != nil {
		return c, fmt.Errorf("load configuration: %w", err)
	}
	return c, c.check()
}

// SaveConfig writes a configuration, 0600.
func SaveConfig(name string, c Config) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return writeJSON(name, c)
}

func (c Config) check() error {
	if c.Node == "" {
		return errors.New("configuration: node has no name")
	}
	if len(c.DeclarationKey) != ed25519.PublicKeySize {
		return errors.New("configuration: declarationKey is not an ed25519 public key")
	}
	return nil
}

func (c Config) proxyPort() int {
	if c.ProxyPort == 0 {
		return defaultProxyPort
	}
	return c.ProxyPort
}

func (c Config) reportEvery() time.Duration {
	if c.ReportSeconds == 0 {
		return defaultReportEvery
	}
	return time.Duration(c.ReportSeconds) * time.Second
}

// Point is a place in a pass between two changes to the machine.
type Point string

// The points, in the order of a pass.
const (
	PointAccepted   Point = "accepted"  // the declaration is on disk, not acknowledged
	PointStaged     Point = "staged"    // everything fetched, nothing switched
	PointFile       Point = "file"      // a file is in place, not recorded
	PointUnpacked   Point = "unpacked"  // an archive stands beside, not switched
	PointArchive    Point = "archive"   // an archive is switched, not recorded
	PointCreated    Point = "created"   // the new container is made, the old one runs
	PointSetAside   Point = "set-aside" // the old container is stopped, the new one not in its place
	PointStarted    Point = "started"   // the new container runs, and has not proved itself
	PointHeld       Point = "held"      // a service's process is there, not recorded
	PointRecorded   Point = "recorded"  // it is recorded, and does not run its program yet
	PointService    Point = "service"   // a service runs, and has not proved itself
	PointProved     Point = "proved"    // it proved itself, its predecessor is still there
	PointRolledBack Point = "put-back"  // the predecessor is back, and this is not recorded
	PointRemoved    Point = "removed"   // something undeclared is gone, and still recorded
	PointSettled    Point = "settled"   // everything done, the outcome not recorded
)

// Points lists every point.
var Points = []Point{
	PointAccepted, PointStaged, PointFile, PointUnpacked, PointArchive, PointCreated, PointSetAside,
	PointStarted, PointHeld, PointRecorded, PointService, PointProved, PointRolledBack, PointRemoved, PointSettled,
}

func (h *Host) at(p Point) {
	if h.cfg.Fault != nil {
		h.cfg.Fault(p)
	}
}
