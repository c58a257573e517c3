#!/bin/sh
# Starts RabbitMQ with the environment of the public image: RABBITMQ_DEFAULT_USER,
# RABBITMQ_DEFAULT_PASS, RABBITMQ_DEFAULT_VHOST and RABBITMQ_NODENAME are the server's own.
set -eu
if [ "${1:-}" = rabbitmq-server ] && [ "$(id -u)" = 0 ]; then
	mkdir -p "$RABBITMQ_MNESIA_BASE"
	find /var/lib/rabbitmq ! -user rabbitmq -exec chown rabbitmq:rabbitmq {} +
	exec su -s /bin/sh rabbitmq -c 'exec "$0" "$@"' "$@"
fi
exec "$@"
