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
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/reconcile/secrets"
	"github.com/mesh-control/mesh/schema"
)

// The builder's own secrets that issue gives.
const (
	BuilderModule = "builder"
	BrokerSecret  = "broker"
	KeySecret     = "key"
)

// issue makes a builder's account and key, in place of those it had, and seals to its node
// what it needs to reach the broker and the private half of the key. What the builder signs from
// now on is known by the key derived from that. A secret is stored before the account is made,
// in a transaction that the account's failure rolls back.
func (b *Builds) issue(ctx context.Context, c *extension.Context, tx pgx.Tx, node string) (api.BuilderIssueOut, error) {
	password := rand.Text() + rand.Text()
	account := bus.BuilderAccount(node, password)
	address := url.URL{Scheme: "amqps", User: url.UserPassword(account.Name, password), Host: b.config.BrokerAddress, Path: "/"}
	credential, err := schema.Canonical(schema.Credential{URL: address.String(), Fingerprint: b.config.Fingerprint})
	if err != nil {
		return api.BuilderIssueOut{}, fmt.Errorf("issue builder of %s: %w", node, err)
	}
	private, public, err := pki.NewSealingKey()
	if err != nil {
		return api.BuilderIssueOut{}, err
	}
	err = b.config.Secrets.Give(ctx, tx, node, BuilderModule, BrokerSecret, credential)
	if err == nil {
		err = b.config.Secrets.Give(ctx, tx, node, BuilderModule, KeySecret, private)
	}
	if errors.Is(err, secrets.ErrNoNode) {
		return api.BuilderIssueOut{}, &api.Error{Code: api.CodeNotFound, Message: "there is no node " + node, Remedy: "mesh node ls"}
	}
	if err != nil {
		return api.BuilderIssueOut{}, err
	}
	_, err = tx.Exec(ctx, `
INSERT INTO mesh.builders (node, account, public_key) VALUES ($1, $2, $3)
ON CONFLICT (node) DO UPDATE SET public_key = excluded.public_key, issued_at = mesh.mesh_now(), revision = mesh.builders.revision + 1`,
		node, account.Name, public)
	if err != nil {
		return api.BuilderIssueOut{}, fmt.Errorf("record builder of %s: %w", node, err)
	}
	if err := IssueSigningKey(ctx, tx, node, private); err != nil {
		return api.BuilderIssueOut{}, err
	}
	if err := c.Work.Enqueue(ctx, tx, workRecipients, "all", time.Time{}); err != nil {
		return api.BuilderIssueOut{}, err
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
SELECT b.node, b.account, b.public_key, (SELECT max(ended_at) FROM mesh.builds WHERE builder = b.node)
FROM mesh.builders b ORDER BY b.node`)
	if err != nil {
		return nil, fmt.Errorf("read builders: %w", err)
	}
	builders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (api.Builder, error) {
		var builder api.Builder
		var last *time.Time
		var key []byte
		err := row.Scan(&builder.Node, &builder.Account, &key, &last)
		if key != nil {
			builder.Key = pki.KeyFingerprint(key)
		}
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

// registerBuilders brings the catalogue's list of keys in line with the builders issued. It
// runs now and then as well, since the catalogue may come later than they, and a node that is
// forgotten takes its builder along.
func (b *Builds) registerBuilders(ctx context.Context, run *extension.Run, _ string) (string, error) {
	ready, err := hasTable(ctx, run.Store, instancesTable)
	if err != nil || !ready {
		return extension.Done, err
	}
	return extension.Done, run.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
SELECT catalogue.request_register_recipient(b.node, b.public_key) FROM mesh.builders b
WHERE b.public_key IS NOT NULL AND NOT EXISTS (SELECT FROM catalogue.recipients r WHERE r.name = b.node AND r.public_key = b.public_key)`)
		if err == nil {
			_, err = tx.Exec(ctx, `
SELECT catalogue.request_unregister_recipient(r.name) FROM catalogue.recipients r
WHERE NOT EXISTS (SELECT FROM mesh.builders b WHERE b.node = r.name AND b.public_key IS NOT NULL)`)
		}
		if err != nil {
			return fmt.Errorf("tell the catalogue the builders' keys: %w", err)
		}
		return nil
	})
}
