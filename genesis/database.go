package genesis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/schema"
)

// The database and its roles: each writes its own schema, and nothing of the other's.
const (
	databaseName   = "mesh"
	controllerRole = "mesh_controller"
	catalogueRole  = "mesh_catalogue"
)

// prepareDatabase makes the database and the roles; their schemas are made by those who own them.
func (in *Installer) prepareDatabase(ctx context.Context) (string, error) {
	server, err := in.postgres()
	if err != nil {
		return "", err
	}
	pool, err := store.WaitOpen(ctx, server.URL("postgres", in.keys.superuser, "postgres"))
	if err != nil {
		return "", err
	}
	defer pool.Close()
	for role, password := range map[string]string{controllerRole: in.keys.controllerRole, catalogueRole: in.keys.catalogueRole} {
		if err := makeRole(ctx, pool, role, password); err != nil {
			return "", fmt.Errorf("role %s: %w", role, err)
		}
	}
	var one int
	err = pool.QueryRow(ctx, `SELECT 1 FROM pg_database WHERE datname = $1`, databaseName).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = pool.Exec(ctx, `CREATE DATABASE `+databaseName)
	}
	if err != nil {
		return "", fmt.Errorf("database %s: %w", databaseName, err)
	}
	grants := `REVOKE ALL ON DATABASE mesh FROM PUBLIC;
GRANT CONNECT, CREATE, TEMPORARY ON DATABASE mesh TO mesh_controller, mesh_catalogue;`
	if _, err := pool.Exec(ctx, grants); err != nil {
		return "", fmt.Errorf("grants on %s: %w", databaseName, err)
	}
	return "database mesh, a role each for controller and catalogue", nil
}

// makeRole sets the password again when the role is there: the file of it is the truth.
// Passwords are URL-safe base64, so they need no escape in the statement, which takes no
// parameters.
func makeRole(ctx context.Context, pool *store.Pool, role, password string) error {
	if strings.ContainsAny(password, `'\`) {
		return errors.New("the password has characters it cannot have")
	}
	var one int
	err := pool.QueryRow(ctx, `SELECT 1 FROM pg_roles WHERE rolname = $1`, role).Scan(&one)
	verb := "ALTER"
	if errors.Is(err, pgx.ErrNoRows) {
		verb = "CREATE"
	} else if err != nil {
		return err
	}
	_, err = pool.Exec(ctx, fmt.Sprintf(`%s ROLE %s LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB PASSWORD '%s'`, verb, role, password))
	return err
}

// databaseCredential is what a program needs to reach the database as role.
func (in *Installer) databaseCredential(role, password string) schema.Credential {
	return schema.Credential{
		URL:  fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=require", role, password, in.Address, in.ports.Postgres, databaseName),
		Host: in.Address, Port: in.ports.Postgres, User: role, Password: password, Database: databaseName, CA: string(in.keys.caPEM),
	}
}
