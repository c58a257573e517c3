package reconcile

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/builds"
	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/reconcile/secrets"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// Epoch of declarations. A control plane restored from a backup starts a new one.
const Epoch = 1

// File is the controller's configuration, as JSON. Every secret is the path of a file.
type File struct {
	Mesh    string   `json:"mesh"`
	Listen  []string `json:"listen"` // host:port, each
	Address string   `json:"address,omitempty"`
	// Database and Broker are credential files ([schema.Credential]).
	Database string `json:"database"`
	Broker   string `json:"broker"`
	// BrokerAdmin is a credential file for the management API: url, user, password.
	BrokerAdmin string `json:"brokerAdmin"`
	// BrokerAddress is host:port as nodes reach the broker; the Broker credential's where empty.
	BrokerAddress  string            `json:"brokerAddress,omitempty"`
	Certificate    string            `json:"certificate"`
	Key            string            `json:"key"`
	DeclarationKey string            `json:"declarationKey"` // PEM, PKCS 8, ed25519
	Registry       *RegistryFile     `json:"registry,omitempty"`
	Toolchains     map[string]string `json:"toolchains,omitempty"` // by language; Go's own where empty
	// UpstreamInterval is the time between two looks at what borrowed tags mean, as "1h", which
	// is the default; "0" never looks.
	UpstreamInterval string `json:"upstreamInterval,omitempty"`
}

// RegistryFile says where the registry of the foundation is.
type RegistryFile struct {
	URL         string `json:"url"` // https://host:port, as nodes reach it
	CA          string `json:"ca"`  // file
	Fingerprint string `json:"fingerprint,omitempty"`
	Key         string `json:"key"` // file, PEM, PKCS 8, ed25519: signs its tokens
}

// Config is a configuration with its files read.
type Config struct {
	Mesh           string
	Version        string
	Roles          []string
	Listen         []string
	Database       string // URL
	Broker         bus.Config
	Admin          bus.Admin
	BrokerAddress  string
	Certificate    []byte
	Key            []byte
	DeclarationKey ed25519.PrivateKey
	Registry       *Registry
	Toolchains     map[string]string
	// UpstreamInterval is the time between two looks at what borrowed tags mean; 0 never looks.
	UpstreamInterval time.Duration
}

// defaultUpstreamInterval is a tag's owner's pace, and far from what registries allow one to ask.
const defaultUpstreamInterval = time.Hour

// Registry is the foundation's registry.
type Registry struct {
	URL         string
	CA          string // PEM
	Fingerprint string
	Key         ed25519.PrivateKey
}

// Load reads a configuration and the files it names.
func Load(path string) (Config, error) {
	var file File
	if err := readJSON(path, &file); err != nil {
		return Config{}, err
	}
	c := Config{Mesh: file.Mesh, Listen: file.Listen, BrokerAddress: file.BrokerAddress, Toolchains: file.Toolchains}
	var database, broker, admin schema.Credential
	for path, into := range map[string]*schema.Credential{file.Database: &database, file.Broker: &broker, file.BrokerAdmin: &admin} {
		if err := readJSON(path, into); err != nil {
			return c, err
		}
	}
	c.Database = databaseURL(database)
	c.Broker = bus.Config{URL: broker.URL, Fingerprints: strings.Fields(broker.Fingerprint), Name: "mesh-controller"}
	c.Admin = bus.Admin{URL: admin.URL, User: admin.User, Password: admin.Password}
	var err error
	if c.Certificate, err = os.ReadFile(file.Certificate); err != nil {
		return c, fmt.Errorf("read certificate: %w", err)
	}
	if c.Key, err = os.ReadFile(file.Key); err != nil {
		return c, fmt.Errorf("read key: %w", err)
	}
	if c.DeclarationKey, err = ReadKey(file.DeclarationKey); err != nil {
		return c, fmt.Errorf("read declaration key: %w", err)
	}
	c.UpstreamInterval = defaultUpstreamInterval
	if file.UpstreamInterval != "" {
		if c.UpstreamInterval, err = time.ParseDuration(file.UpstreamInterval); err != nil || c.UpstreamInterval != 0 && c.UpstreamInterval < time.Second {
			return c, fmt.Errorf("configuration: upstreamInterval: %q is neither a duration of 1s or more, as 30m, nor 0 for never", file.UpstreamInterval)
		}
	}
	if file.Registry != nil {
		if c.Registry, err = loadRegistry(*file.Registry); err != nil {
			return c, err
		}
	}
	return c, c.Check()
}

func loadRegistry(file RegistryFile) (*Registry, error) {
	ca, err := os.ReadFile(file.CA)
	if err != nil {
		return nil, fmt.Errorf("read registry's CA: %w", err)
	}
	key, err := ReadKey(file.Key)
	if err != nil {
		return nil, fmt.Errorf("read registry's key: %w", err)
	}
	return &Registry{URL: file.URL, CA: string(ca), Fingerprint: file.Fingerprint, Key: key}, nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// ReadKey reads an ed25519 private key (PEM, PKCS 8).
func ReadKey(path string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds no ed25519 key", path)
	}
	return key, nil
}

// databaseURL makes the URL of a credential that gives its parts.
func databaseURL(c schema.Credential) string {
	if c.URL != "" {
		return c.URL
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: net.JoinHostPort(c.Host, strconv.Itoa(c.Port)), Path: "/" + c.Database}
	return u.String()
}

// Check says everything that is missing.
func (c Config) Check() error {
	var problems []error
	require := func(ok bool, what string) {
		if !ok {
			problems = append(problems, errors.New(what))
		}
	}
	require(c.Mesh != "", "mesh: no name")
	require(c.Database != "", "database: no URL")
	require(len(c.DeclarationKey) == ed25519.PrivateKeySize, "declarationKey: not an ed25519 key")
	if err := c.Broker.Check(); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return fmt.Errorf("configuration: %w", errors.Join(problems...))
	}
	return nil
}

// brokerAddress is host:port as nodes reach the broker.
func (c Config) brokerAddress() string {
	if c.BrokerAddress != "" {
		return c.BrokerAddress
	}
	u, err := url.Parse(c.Broker.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

// builtIn is what the foundation provides.
func (c Config) builtIn() []compose.BuiltIn {
	if c.Registry == nil {
		return nil
	}
	u, err := url.Parse(c.Registry.URL)
	if err != nil {
		return nil
	}
	port, _ := strconv.Atoi(u.Port())
	return []compose.BuiltIn{{Provision: schema.ConfigArtifactStore, Host: u.Hostname(), Port: port}}
}

// pushes are the modules that may push to the registry.
func pushes() []string { return []string{"builder"} }

// keeper makes the keeper of secrets.
func (c Config) keeper() *secrets.Secrets {
	config := secrets.Config{Mesh: c.Mesh, Pushes: pushes()}
	if r := c.Registry; r != nil {
		config.Registry = &secrets.Foundation{
			URL: r.URL, CA: r.CA, Fingerprint: r.Fingerprint, Key: pki.KeyFingerprint(r.Key.Public().(ed25519.PublicKey)),
			Token: func(subject string, push bool) string { return token(r.Key, subject, push) },
		}
	}
	return secrets.New(config)
}

// token lasts until the registry's key changes, so that nodes pull while no controller runs.
func token(key ed25519.PrivateKey, subject string, push bool) string {
	pull := []string{registry.ActionPull}
	access := []registry.Access{{Repository: "modules/*", Actions: pull}, {Repository: "carried/*", Actions: pull}}
	if push {
		access[0].Actions = append(access[0].Actions, registry.ActionPush)
	}
	return registry.SignToken(key, registry.Claims{Subject: subject, Access: access})
}

// registryClient makes clients of the controller's own; nil without a registry. Its tokens are
// for the one use, and end.
func (c Config) registryClient() func() (*registry.Client, error) {
	r := c.Registry
	if r == nil {
		return nil
	}
	return func() (*registry.Client, error) {
		now := time.Now()
		return registry.NewClient(registry.Config{
			URL: r.URL, CA: r.CA, Fingerprint: r.Fingerprint, Attempts: 3,
			Token: registry.SignToken(r.Key, registry.Claims{Subject: "controller", IssuedAt: now, Expires: now.Add(time.Hour), Access: []registry.Access{
				{Repository: "modules/*", Actions: []string{registry.ActionPull}}, {Repository: "carried/*", Actions: []string{registry.ActionPull}},
			}}),
		})
	}
}

// upstreams asks through the mesh's own registry, where carried images stand for the outside's.
func (c Config) upstreams() func() (builds.Upstreams, error) {
	client := c.registryClient()
	if client == nil {
		return nil
	}
	return func() (builds.Upstreams, error) { return client() }
}

func (c Config) toolchains() map[string]string {
	if len(c.Toolchains) > 0 {
		return c.Toolchains
	}
	return map[string]string{"go": runtime.Version()}
}
