package foundation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Broker is the recipe of one RabbitMQ node. Clients reach it over TLS only; the management
// API answers on the loopback address only; the Erlang ports are loopback too.
type Broker struct {
	Dir            string // holds everything, Erlang's cookie included
	NodeName       string // "name@localhost"; empty is mesh@localhost
	AMQPSPort      int
	ManagementPort int
	DistPort       int // between Erlang nodes; administration tools use it
	EPMDPort       int // of this node's own name server
	Listen         []string
	User           string // account the server runs as; "" is the caller's
	CertPEM        []byte // may carry the chain
	KeyPEM         []byte
	// AdminUser and AdminPassword are made at the first start, and the guest account is not.
	AdminUser, AdminPassword string
	// ConsumerTimeout is how long a delivery may stay unacknowledged before the broker
	// closes its channel. Zero is DefaultConsumerTimeout.
	ConsumerTimeout time.Duration
	// Settings are added to rabbitmq.conf as they are.
	Settings map[string]string
}

// DefaultConsumerTimeout is far above any build's deadline.
const DefaultConsumerTimeout = 24 * time.Hour

// maxMessage is the largest message the broker takes. What may be larger travels by digest.
const maxMessage = 16 << 20

// BrokerBin is the directory of the newest RabbitMQ programs installed.
func BrokerBin() (string, error) {
	server, err := newest("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server", "RabbitMQ", "rabbitmq-server")
	return filepath.Dir(server), err
}

// Init lays out the node's directory and writes its configuration.
func (b Broker) Init(context.Context) error {
	if b.AdminUser == "" || b.AdminPassword == "" {
		return errors.New("prepare RabbitMQ: no administrator given")
	}
	if len(b.CertPEM) == 0 || len(b.KeyPEM) == 0 {
		return errors.New("prepare RabbitMQ: no certificate given")
	}
	if _, err := BrokerBin(); err != nil {
		return err
	}
	for _, dir := range []string{b.Dir, b.path("mnesia"), b.path("log")} {
		if err := own(dir, b.User); err != nil {
			return err
		}
	}
	files := map[string][]byte{
		"server.crt":      b.CertPEM,
		"server.key":      b.KeyPEM,
		"rabbitmq.conf":   b.configuration(),
		"enabled_plugins": []byte("[rabbitmq_management].\n"),
		"run":             []byte(launcher),
	}
	for name, data := range files {
		mode := fs.FileMode(0o600)
		if name == "run" {
			mode = 0o700
		}
		if err := write(b.path(name), data, mode, b.User); err != nil {
			return err
		}
	}
	return nil
}

// launcher becomes the server: epmd, which Erlang would otherwise leave behind as a daemon
// that outlives the node, is its child and ends with it.
const launcher = `#!/bin/sh
setpriv --pdeathsig TERM epmd -port "$ERL_EPMD_PORT" -address "$ERL_EPMD_ADDRESS" &
exec "$@"
`

func (b Broker) configuration() []byte {
	var out bytes.Buffer
	set := func(key, value string) { fmt.Fprintf(&out, "%s = %s\n", key, value) }
	timeout := b.ConsumerTimeout
	if timeout == 0 {
		timeout = DefaultConsumerTimeout
	}
	set("listeners.tcp", "none")
	for i, address := range b.addresses() {
		set("listeners.ssl."+strconv.Itoa(i+1), net.JoinHostPort(address, strconv.Itoa(b.AMQPSPort)))
	}
	set("ssl_options.certfile", b.path("server.crt"))
	set("ssl_options.keyfile", b.path("server.key"))
	set("ssl_options.verify", "verify_none")
	set("ssl_options.versions.1", "tlsv1.3")
	set("ssl_options.versions.2", "tlsv1.2")
	set("management.tcp.ip", "127.0.0.1")
	set("management.tcp.port", strconv.Itoa(b.ManagementPort))
	set("default_user", b.AdminUser)
	set("default_pass", b.AdminPassword)
	set("consumer_timeout", strconv.FormatInt(timeout.Milliseconds(), 10))
	set("max_message_size", strconv.Itoa(maxMessage))
	set("log.console", "true")
	set("log.console.level", "warning")
	set("log.file", "false")
	for _, key := range slices.Sorted(maps.Keys(b.Settings)) {
		set(key, b.Settings[key])
	}
	return out.Bytes()
}

// Command runs the node in the foreground; SIGTERM stops it in order.
func (b Broker) Command() (Command, error) {
	bin, err := BrokerBin()
	if err != nil {
		return Command{}, err
	}
	return Command{
		Exec: b.path("run"), Args: []string{filepath.Join(bin, "rabbitmq-server")}, Dir: b.Dir, User: b.User,
		Env: b.environment(),
	}, nil
}

// Control is the administration tool's command on this node, as "eval", "...". The node
// must be running.
func (b Broker) Control(args ...string) (Command, error) {
	bin, err := BrokerBin()
	if err != nil {
		return Command{}, err
	}
	return Command{Exec: filepath.Join(bin, "rabbitmqctl"), Args: args, Dir: b.Dir, User: b.User, Env: b.environment()}, nil
}

func (b Broker) environment() []string {
	name := b.NodeName
	if name == "" {
		name = "mesh@localhost"
	}
	return append(environment(b.Dir),
		"RUNNING_UNDER_SYSTEMD=true", // the script then becomes the server instead of staying in front of it
		"RABBITMQ_NODENAME="+name,
		"RABBITMQ_DIST_PORT="+strconv.Itoa(b.DistPort),
		"ERL_EPMD_PORT="+strconv.Itoa(b.EPMDPort),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE="+b.path("rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+b.path("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE="+b.path("mnesia"),
		"RABBITMQ_LOG_BASE="+b.path("log"),
		"RABBITMQ_PID_FILE="+b.PidFile(),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	)
}

// ReadConsumerTimeout asks the running node for the acknowledgement timeout in force. It
// takes a second or two: an Erlang node is started to ask.
func (b Broker) ReadConsumerTimeout(ctx context.Context) (time.Duration, error) {
	command, err := b.Control("--silent", "eval", "{ok, T} = application:get_env(rabbit, consumer_timeout), T.")
	if err != nil {
		return 0, err
	}
	cmd, err := command.Cmd(ctx)
	if err != nil {
		return 0, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("ask for the acknowledgement timeout: %w: %s", err, tail(out))
	}
	millis, err := strconv.ParseInt(tail(out), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the acknowledgement timeout: %w", err)
	}
	return time.Duration(millis) * time.Millisecond, nil
}

// WaitReady returns when the node takes clients on every address and its management API
// knows the administrator.
func (b Broker) WaitReady(ctx context.Context) error {
	return poll(ctx, "RabbitMQ on port "+strconv.Itoa(b.AMQPSPort), func(ctx context.Context) error {
		if err := b.askManagement(ctx); err != nil {
			return err
		}
		for _, address := range b.addresses() {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(b.AMQPSPort)))
			if err != nil {
				return err
			}
			conn.Close()
		}
		return nil
	})
}

func (b Broker) askManagement(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.ManagementURL()+"/api/whoami", nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth(b.AdminUser, b.AdminPassword)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("management API says %s", response.Status)
	}
	return nil
}

// URL is where clients reach the node, as user.
func (b Broker) URL(user, password string) string {
	u := url.URL{
		Scheme: "amqps", User: url.UserPassword(user, password),
		Host: net.JoinHostPort(b.addresses()[0], strconv.Itoa(b.AMQPSPort)), Path: "/",
	}
	return u.String()
}

// ManagementURL is the management API's address, reachable from this machine only.
func (b Broker) ManagementURL() string {
	return "http://127.0.0.1:" + strconv.Itoa(b.ManagementPort)
}

// PidFile is where the running node keeps its process id.
func (b Broker) PidFile() string { return b.path("pid") }

func (b Broker) path(name string) string { return filepath.Join(b.Dir, name) }

func (b Broker) addresses() []string {
	if len(b.Listen) == 0 {
		return []string{"127.0.0.1"}
	}
	return b.Listen
}
