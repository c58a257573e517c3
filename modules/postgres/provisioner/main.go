// Command provisioner gives whoever the mesh lets use this PostgreSQL a role and a database.
//
// The mesh lands one file for each consumer in the grants directory and takes it away when
// the consumer goes. Every pass makes the server agree with the directory:
//
//   - a grant's role exists, can log in and has the grant's password; its database exists and
//     belongs to it; nobody else may connect there
//   - a role this program made whose grant is gone can no longer log in, and its connections
//     are ended; role and database stay, because a withdrawn grant is often a mistake and a
//     dropped database always is
//
// What it made is known by the role's comment, so roles of anybody else are never touched: a
// grant that asks for one is refused and told. The password file is read at each pass, and a
// server that does not answer is waited for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

type options struct {
	host, user, passwordFile, grants string
	port                             int
	interval                         time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.host, "host", "127.0.0.1", "the server's host")
	flag.IntVar(&o.port, "port", 5432, "the server's port")
	flag.StringVar(&o.user, "user", "postgres", "the superuser")
	flag.StringVar(&o.passwordFile, "password-file", "", "file with the superuser's password")
	flag.StringVar(&o.grants, "grants", "", "directory of grants")
	flag.DurationVar(&o.interval, "interval", 2*time.Second, "time between two passes")
	flag.Parse()
	if o.passwordFile == "" || o.grants == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "provisioner: --password-file and --grants are needed, and nothing else is taken")
		os.Exit(2)
	}
	serve(ctx, o, slog.New(slog.NewJSONHandler(os.Stderr, nil)))
}

// serve makes a pass at every interval until ctx ends. A failure is said once, and again
// when it changes or ends.
func serve(ctx context.Context, o options, log *slog.Logger) {
	said := "nothing yet"
	for {
		err := pass(ctx, o, log)
		if ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != said {
			if said = text; err != nil {
				log.Warn("not everything is granted", "error", text)
			} else {
				log.Info("everything is granted")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(o.interval):
		}
	}
}

// connect opens one connection to a database as the superuser.
func connect(ctx context.Context, o options, database string) (*pgx.Conn, error) {
	password, err := os.ReadFile(o.passwordFile)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	target := url.URL{
		Scheme: "postgres", User: url.UserPassword(o.user, strings.TrimSpace(string(password))),
		Host: net.JoinHostPort(o.host, strconv.Itoa(o.port)), Path: "/" + database,
		RawQuery: "application_name=provisioner",
	}
	conn, err := pgx.Connect(ctx, target.String())
	if err != nil {
		return nil, errors.New("connect to the server: " + cause(err))
	}
	return conn, nil
}

// cause leaves out the connection string, which the driver's errors begin with.
func cause(err error) string {
	text := err.Error()
	if _, after, found := strings.Cut(text, "`: "); found {
		return after
	}
	return text
}
