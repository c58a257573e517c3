package carried

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// BrokerReference is the public image that [Broker] stands for.
const BrokerReference = "docker.io/library/rabbitmq:3.10-management"

//go:embed broker-entrypoint.sh
var brokerEntrypoint string

// Broker is RabbitMQ with its management plug-in, from Debian's packages, on their Erlang.
func Broker(ctx context.Context, cache string) (Image, error) {
	program, err := findBusybox()
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", BrokerReference, err)
	}
	servers, err := filepath.Glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin")
	if err != nil || len(servers) != 1 {
		return Image{}, fmt.Errorf("carry %s: %w", BrokerReference, errors.New("rabbitmq-server is not installed; apt-get install rabbitmq-server"))
	}
	key, err := packages(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("carry %s: %w", BrokerReference, err)
	}
	return cached(cache, "rabbitmq", key+brokerEntrypoint, BrokerReference, func(dir string) error {
		t, err := brokerTree(ctx, program)
		if err != nil {
			return err
		}
		return write(dir, t, v1.Config{
			Env: []string{
				"PATH=" + servers[0] + ":/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/var/lib/rabbitmq",
				"RABBITMQ_LOGS=-", "RABBITMQ_MNESIA_BASE=/var/lib/rabbitmq/mnesia",
				"RABBITMQ_ENABLED_PLUGINS_FILE=/etc/rabbitmq/enabled_plugins",
			},
			Entrypoint: []string{"docker-entrypoint.sh"}, Cmd: []string{"rabbitmq-server"},
			ExposedPorts: map[string]struct{}{"5672/tcp": {}, "5671/tcp": {}, "15672/tcp": {}, "15671/tcp": {}},
		})
	})
}

func brokerTree(ctx context.Context, program string) (tree, error) {
	t := base("rabbitmq")
	var programs []string
	for _, root := range []string{"/usr/lib/erlang", "/usr/lib/rabbitmq", "/usr/lib/locale/C.utf8"} {
		found, err := t.directory(root, nothing)
		if err != nil {
			return nil, err
		}
		programs = append(programs, found...)
	}
	if err := t.libraries(ctx, programs); err != nil {
		return nil, err
	}
	for _, name := range []string{"erl", "erlc", "escript", "epmd"} {
		t.link("usr/bin/"+name, "../lib/erlang/bin/"+name)
	}
	t.text("etc/rabbitmq/enabled_plugins", "[rabbitmq_management,rabbitmq_prometheus].\n", 0o644)
	t.dir("etc/rabbitmq/conf.d", 0o755)
	t.dir("var/lib/rabbitmq", 0o755)
	t.dir("var/log/rabbitmq", 0o777)
	t.text("usr/bin/docker-entrypoint.sh", brokerEntrypoint, 0o755)
	return t, t.busybox(ctx, program)
}
