package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// pass makes the server agree with the directory once. One grant failing stops no other.
func pass(ctx context.Context, o options, log *slog.Logger) error {
	grants, unreadable, unread := readGrants(o.grants)
	if grants == nil && unread != nil && unreadable == nil {
		return unread // without the directory nothing is withdrawn
	}
	conn, err := connect(ctx, o, "postgres")
	if err != nil {
		return errors.Join(unread, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// Two passes at once, of an old and a new container, would race for the same names.
	var alone bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtext('mesh provisioner'))").Scan(&alone); err != nil || !alone {
		return errors.Join(unread, err)
	}
	roles, err := ourRoles(ctx, conn)
	if err != nil {
		return errors.Join(unread, err)
	}
	problems := []error{unread}
	for _, g := range grants {
		problems = append(problems, give(ctx, conn, g, roles, log))
		delete(roles, g.User)
	}
	for name, r := range roles {
		consumer := strings.Replace(strings.TrimPrefix(r.label, labelPrefix), " on ", ".", 1)
		if r.login && !slices.Contains(unreadable, consumer) {
			problems = append(problems, withdraw(ctx, conn, name, log))
		}
	}
	return errors.Join(problems...)
}

// role is one that this program made.
type role struct {
	label, digest string
	login         bool
}

// ourRoles reads the roles whose comment says that they are ours: a label, a space and the
// salted digest of the password last set, which spares rewriting it at each pass.
func ourRoles(ctx context.Context, conn *pgx.Conn) (map[string]role, error) {
	rows, err := conn.Query(ctx, `
		SELECT rolname, rolcanlogin, shobj_description(oid, 'pg_authid')
		FROM pg_roles WHERE starts_with(shobj_description(oid, 'pg_authid'), $1)`, labelPrefix)
	if err != nil {
		return nil, fmt.Errorf("read roles: %w", err)
	}
	roles := map[string]role{}
	var name, comment string
	var login bool
	_, err = pgx.ForEachRow(rows, []any{&name, &login, &comment}, func() error {
		label, digest, _ := strings.Cut(comment, ", password ")
		roles[name] = role{label: label, digest: digest, login: login}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read roles: %w", err)
	}
	return roles, nil
}

func give(ctx context.Context, conn *pgx.Conn, g grant, roles map[string]role, log *slog.Logger) error {
	have, ours := roles[g.User]
	if !ours {
		var taken bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", g.User).Scan(&taken); err != nil {
			return fmt.Errorf("grant of %s: %w", g.Consumer, err)
		}
		if taken {
			return fmt.Errorf("grant of %s: role %s was there before and is not ours", g.Consumer, g.User)
		}
	}
	if have.label != g.label() || !have.login || !samePassword(have.digest, g.Password) {
		if err := setRole(ctx, conn, g, ours); err != nil {
			return fmt.Errorf("grant of %s: role %s: %w", g.Consumer, g.User, err)
		}
		log.Info("role can log in", "role", g.User, "consumer", g.Consumer, "node", g.Node)
	}
	if err := setDatabase(ctx, conn, g, log); err != nil {
		return fmt.Errorf("grant of %s: database %s: %w", g.Consumer, g.Database, err)
	}
	return nil
}

// setRole writes role, password and comment in one transaction.
func setRole(ctx context.Context, conn *pgx.Conn, g grant, exists bool) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	verb := "CREATE"
	if exists {
		verb = "ALTER"
	}
	name := pgx.Identifier{g.User}.Sanitize()
	for _, statement := range []string{
		"SET LOCAL log_statement = 'none'", // the next one carries the password
		verb + " ROLE " + name + " LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD " + literal(g.Password),
		"COMMENT ON ROLE " + name + " IS " + literal(g.label()+", password "+digestOf(rand.Text(), g.Password)),
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

func setDatabase(ctx context.Context, conn *pgx.Conn, g grant, log *slog.Logger) error {
	var owner string
	var open bool
	err := conn.QueryRow(ctx, "SELECT pg_get_userbyid(datdba), datallowconn FROM pg_database WHERE datname = $1", g.Database).Scan(&owner, &open)
	missing := errors.Is(err, pgx.ErrNoRows)
	switch {
	case err != nil && !missing:
		return err
	case !missing && owner != g.User:
		return fmt.Errorf("it belongs to %s", owner)
	case !missing && open:
		return nil
	}
	database, user := pgx.Identifier{g.Database}.Sanitize(), pgx.Identifier{g.User}.Sanitize()
	// Nobody can connect until nobody else can: broken off here, the next pass goes on.
	statements := []string{
		"REVOKE ALL ON DATABASE " + database + " FROM PUBLIC",
		"ALTER DATABASE " + database + " ALLOW_CONNECTIONS true",
	}
	if missing {
		statements = slices.Insert(statements, 0, "CREATE DATABASE "+database+" OWNER "+user+" ALLOW_CONNECTIONS false")
	}
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	log.Info("database made", "database", g.Database, "role", g.User)
	return nil
}

func withdraw(ctx context.Context, conn *pgx.Conn, name string, log *slog.Logger) error {
	if _, err := conn.Exec(ctx, "ALTER ROLE "+pgx.Identifier{name}.Sanitize()+" NOLOGIN"); err != nil {
		return fmt.Errorf("withdraw role %s: %w", name, err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", name); err != nil {
		return fmt.Errorf("end the connections of role %s: %w", name, err)
	}
	log.Info("role can no longer log in", "role", name)
	return nil
}

// literal quotes a text for a statement that takes no parameters.
func literal(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

// digestOf is salt:sha256(salt password). Passwords are random and long: it cannot be guessed
// from, and whoever reads comments of roles learns nothing.
func digestOf(salt, password string) string {
	sum := sha256.Sum256([]byte(salt + password))
	return salt + ":" + hex.EncodeToString(sum[:])
}

func samePassword(digest, password string) bool {
	salt, _, found := strings.Cut(digest, ":")
	return found && digestOf(salt, password) == digest
}
