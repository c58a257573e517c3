package builds

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/reconcile/secrets"
	"github.com/mesh-control/mesh/schema"
)

// The builder's own secret that Issue gives.
const (
	BuilderModule = "builder"
	BrokerSecret  = "broker"
)

// issue makes a builder's account, in place of one it had, and seals what it needs to reach
// the broker to its node. The secret is stored before the account is made, in a transaction
// that the account's failure rolls back.
func (b *Builds) issue(ctx context.Context, c *extension.Context, tx pgx.Tx, node string) (api.BuilderIssueOut, error) {
	password := rand.Text() + rand.Text()
	account := bus.BuilderAccount(node, password)
	address := url.URL{Scheme: "amqps", User: url.UserPassword(account.Name, password), Host: b.config.BrokerAddress, Path: "/"}
	credential, err := schema.Canonical(schema.Credential{URL: address.String(), Fingerprint: b.config.Fingerprint})
	if err != nil {
		return api.BuilderIssueOut{}, fmt.Errorf("issue builder of %s: %w", node, err)
	}
	err = b.config.Secrets.Give(ctx, tx, node, BuilderModule, BrokerSecret, credential)
	if errors.Is(err, secrets.ErrNoNode) {
		return api.BuilderIssueOut{}, &api.Error{Code: api.CodeNotFound, Message: "there is no node " + node, Remedy: "mesh node ls"}
	}
	if err != nil {
		return api.BuilderIssueOut{}, err
	}
	_, err = tx.Exec(ctx, `
INSERT INTO mesh.builders (node, account) VALUES ($1, $2)
ON CONFLICT (node) DO UPDATE SET issued_at = mesh.mesh_now(), revision = mesh.builders.revision + 1`, node, account.Name)
	if err != nil {
		return api.BuilderIssueOut{}, fmt.Errorf("record builder of %s: %w", node, err)
	}
	if err := c.Desired.Invalidate(ctx, tx, node); err != nil {
		return api.BuilderIssueOut{}, err
	}
	// Deleting first ends the connections of whoever holds the old password.
	if err = b.config.Admin.DeleteAccount(ctx, account.Name); err == nil {
		err = b.config.Admin.PutAccount(ctx, account)
	}
	if err != nil {
		b.config.Log.Error("broker account not made", "node", node, "error", err)
		return api.BuilderIssueOut{}, &api.Error{
			Code: api.CodeUnavailable, Message: "the broker made no account for the builder of " + node,
			Remedy: "look at the broker, then mesh builder issue --node " + node,
		}
	}
	return api.BuilderIssueOut{Node: node, Account: account.Name}, nil
}

// Builders lists the builders issued, and whether each is connected.
func (b *Builds) Builders(ctx context.Context, q inventory.Queryer) ([]api.Builder, error) {
	rows, err := q.Query(ctx, `
SELECT b.node, b.account, (SELECT max(ended_at) FROM mesh.builds WHERE builder = b.node)
FROM mesh.builders b ORDER BY b.node`)
	if err != nil {
		return nil, fmt.Errorf("read builders: %w", err)
	}
	builders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (api.Builder, error) {
		var builder api.Builder
		var last *time.Time
		err := row.Scan(&builder.Node, &builder.Account, &last)
		if last != nil {
			builder.LastBuild = *last
		}
		return builder, err
	})
	if err != nil {
		return nil, fmt.Errorf("read builders: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	connections, err := b.config.Admin.ListConnections(ctx)
	if err != nil {
		b.config.Log.Warn("connections not listed", "error", err)
	}
	for i := range builders {
		for _, connection := range connections {
			if connection.User == builders[i].Account && connection.State == "running" {
				builders[i].Connected = true
			}
		}
	}
	if builders == nil {
		builders = []api.Builder{}
	}
	return builders, nil
}
