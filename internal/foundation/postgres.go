package foundation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// DefaultDatabaseUser is the superuser of a cluster whose recipe names none.
const DefaultDatabaseUser = "postgres"

// Postgres is the recipe of one PostgreSQL cluster.
type Postgres struct {
	Dir      string   // holds everything; "data" within is the cluster
	Port     int      // on every address of Listen
	Listen   []string // addresses; empty is 127.0.0.1
	User     string   // account the server runs as; must not be root
	Password string   // of the superuser "postgres", asked of every client
	// CertPEM and KeyPEM turn on TLS, which is then required of every client that does
	// not come from the loopback address.
	CertPEM, KeyPEM []byte
	// Settings are added to postgresql.conf as they are, as "fsync" to "off".
	Settings map[string]string
}

// PostgresBin is the directory of the newest PostgreSQL programs installed.
func PostgresBin() (string, error) {
	initdb, err := newest("/usr/lib/postgresql/*/bin/initdb", "PostgreSQL", "postgresql")
	return filepath.Dir(initdb), err
}

// Init makes the cluster if there is none and writes its configuration.
func (p Postgres) Init(ctx context.Context) error {
	if p.Password == "" {
		return errors.New("prepare PostgreSQL: no superuser password given")
	}
	bin, err := PostgresBin()
	if err != nil {
		return err
	}
	if err := own(p.Dir, p.User); err != nil {
		return err
	}
	switch _, err := os.Stat(filepath.Join(p.data(), "PG_VERSION")); {
	case errors.Is(err, fs.ErrNotExist):
		if err := p.initdb(ctx, bin); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("look at PostgreSQL cluster: %w", err)
	}
	if len(p.CertPEM) > 0 {
		if err := write(filepath.Join(p.data(), "server.crt"), p.CertPEM, 0o600, p.User); err != nil {
			return err
		}
		if err := write(filepath.Join(p.data(), "server.key"), p.KeyPEM, 0o600, p.User); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(p.data(), "pg_hba.conf"), p.access(), 0o600, p.User); err != nil {
		return err
	}
	return write(filepath.Join(p.data(), "mesh.conf"), p.configuration(), 0o600, p.User)
}

func (p Postgres) initdb(ctx context.Context, bin string) error {
	password := filepath.Join(p.Dir, "password")
	if err := write(password, []byte(p.Password+"\n"), 0o600, p.User); err != nil {
		return err
	}
	defer os.Remove(password)
	args := []string{
		"--pgdata=" + p.data(), "--username=" + DefaultDatabaseUser, "--pwfile=" + password,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums",
	}
	if p.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	command := Command{Exec: filepath.Join(bin, "initdb"), Args: args, Env: environment(p.Dir), Dir: p.Dir, User: p.User}
	cmd, err := command.Cmd(ctx)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make PostgreSQL cluster %s: %w: %s", p.data(), err, tail(out))
	}
	include := filepath.Join(p.data(), "postgresql.conf")
	file, err := os.OpenFile(include, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	_, err = file.WriteString("\ninclude 'mesh.conf'\n")
	return errors.Join(err, file.Close())
}

// access asks every client for the password, and for TLS when it comes from elsewhere.
func (p Postgres) access() []byte {
	elsewhere := "host"
	if len(p.CertPEM) > 0 {
		elsewhere = "hostssl"
	}
	var b bytes.Buffer
	fmt.Fprintln(&b, "host all all 127.0.0.0/8 scram-sha-256")
	fmt.Fprintln(&b, "host all all ::1/128 scram-sha-256")
	fmt.Fprintf(&b, "%s all all all scram-sha-256\n", elsewhere)
	return b.Bytes()
}

func (p Postgres) configuration() []byte {
	var b bytes.Buffer
	set := func(key, value string) {
		fmt.Fprintf(&b, "%s = '%s'\n", key, strings.ReplaceAll(value, "'", "''"))
	}
	set("listen_addresses", strings.Join(p.addresses(), ","))
	set("port", strconv.Itoa(p.Port))
	set("unix_socket_directories", "")
	set("password_encryption", "scram-sha-256")
	if len(p.CertPEM) > 0 {
		set("ssl", "on")
		set("ssl_cert_file", "server.crt")
		set("ssl_key_file", "server.key")
	}
	for _, key := range slices.Sorted(maps.Keys(p.Settings)) {
		set(key, p.Settings[key])
	}
	return b.Bytes()
}

// Command runs the server in the foreground. SIGTERM waits for clients to leave, SIGINT
// ends their sessions and stops in order, SIGQUIT stops at once and recovers at the next start.
func (p Postgres) Command() (Command, error) {
	bin, err := PostgresBin()
	if err != nil {
		return Command{}, err
	}
	return Command{
		Exec: filepath.Join(bin, "postgres"), Args: []string{"-D", p.data()},
		Env: environment(p.Dir), Dir: p.Dir, User: p.User, StopSignal: "SIGINT",
	}, nil
}

// WaitReady returns when the server accepts clients. It needs the password of nobody.
func (p Postgres) WaitReady(ctx context.Context) error {
	bin, err := PostgresBin()
	if err != nil {
		return err
	}
	return poll(ctx, "PostgreSQL on port "+strconv.Itoa(p.Port), func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "pg_isready"),
			"--host="+p.addresses()[0], "--port="+strconv.Itoa(p.Port), "--dbname=postgres")
		cmd.Env = environment(p.Dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, tail(out))
		}
		return nil
	})
}

// PidFile is where the running server keeps its process id, in the first line.
func (p Postgres) PidFile() string { return filepath.Join(p.data(), "postmaster.pid") }

// URL names database as user at the server's first address.
func (p Postgres) URL(user, password, database string) string {
	mode := "disable"
	if len(p.CertPEM) > 0 {
		mode = "require"
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(user, password),
		Host: net.JoinHostPort(p.addresses()[0], strconv.Itoa(p.Port)), Path: "/" + database,
		RawQuery: "sslmode=" + mode,
	}
	return u.String()
}

func (p Postgres) data() string { return filepath.Join(p.Dir, "data") }

func (p Postgres) addresses() []string {
	if len(p.Listen) == 0 {
		return []string{"127.0.0.1"}
	}
	return p.Listen
}

// environment is what a server sees of its surroundings.
func environment(home string) []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "LANG=C.UTF-8"}
}

// tail is the end of a program's output, short enough for an error.
func tail(out []byte) string {
	out = bytes.TrimSpace(out)
	if len(out) > 2000 {
		out = out[len(out)-2000:]
	}
	return string(out)
}
