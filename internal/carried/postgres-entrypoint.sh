#!/bin/sh
# Starts PostgreSQL with the environment of the public image: POSTGRES_USER,
# POSTGRES_PASSWORD, POSTGRES_DB, POSTGRES_INITDB_ARGS (each also as …_FILE),
# POSTGRES_HOST_AUTH_METHOD and PGDATA.
set -eu
: "${PGDATA:=/var/lib/postgresql/data}"
export PGDATA

file_env() { # file_env NAME DEFAULT: the value, or the content of the file NAME_FILE names
	eval "value=\${$1:-} file=\${$1_FILE:-}"
	if [ -n "$value" ] && [ -n "$file" ]; then
		echo "entrypoint: $1 and $1_FILE are both set" >&2
		exit 1
	fi
	if [ -n "$file" ]; then value=$(cat "$file"); fi
	export "$1=${value:-$2}"
	unset "$1_FILE"
}

case ${1:-} in -* | '') set -- postgres "$@" ;; esac

if [ "$1" = postgres ]; then
	file_env POSTGRES_PASSWORD ''
	file_env POSTGRES_USER postgres
	file_env POSTGRES_DB "$POSTGRES_USER"
	file_env POSTGRES_INITDB_ARGS ''
	if [ "$(id -u)" = 0 ]; then
		mkdir -p "$PGDATA" /var/run/postgresql
		chmod 1777 /var/run/postgresql
		find "$PGDATA" ! -user postgres -exec chown postgres:postgres {} +
		chmod 700 "$PGDATA"
		# Secrets were read as root; from here on it is not root.
		# The two dashes keep su from taking the server's -c for its own.
		exec su -s /bin/sh -c 'exec "$0" "$@"' -- postgres "$0" "$@"
	fi
	if [ ! -s "$PGDATA/PG_VERSION" ]; then
		method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
		if [ -z "$POSTGRES_PASSWORD" ] && [ "$method" != trust ]; then
			echo "entrypoint: POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE is needed to make a database" >&2
			exit 1
		fi
		# Made beside and moved in, PG_VERSION last: broken off anywhere, it is made anew.
		new=$PGDATA/.new
		rm -rf "$new"
		mkdir -m 700 "$new"
		pwfile=$(mktemp)
		printf '%s\n' "$POSTGRES_PASSWORD" >"$pwfile"
		# shellcheck disable=SC2086 # arguments, as the public image takes them
		initdb --pgdata="$new" --username="$POSTGRES_USER" ${POSTGRES_PASSWORD:+--pwfile="$pwfile"} \
			--auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 $POSTGRES_INITDB_ARGS
		rm -f "$pwfile"
		printf '\nhost all all all %s\n' "$method" >>"$new/pg_hba.conf"
		printf "\nlisten_addresses = '*'\n" >>"$new/postgresql.conf"
		if [ "$POSTGRES_DB" != postgres ]; then
			echo "CREATE DATABASE \"$POSTGRES_DB\" OWNER \"$POSTGRES_USER\"" | postgres --single -D "$new" -j postgres >/dev/null
		fi
		for each in "$new"/* "$new"/.[!.]*; do
			case $each in */PG_VERSION | "$new/.[!.]*") ;; *) rm -rf "$PGDATA/${each##*/}" && mv "$each" "$PGDATA/" ;; esac
		done
		sync
		mv "$new/PG_VERSION" "$PGDATA/PG_VERSION"
		rmdir "$new"
	fi
	unset POSTGRES_PASSWORD
fi
exec "$@"
