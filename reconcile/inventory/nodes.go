package inventory

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/bus"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/extension"
)

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// sealingKeySize is that of an X25519 public key.
const sealingKeySize = 32

func invalid(format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalidInput, Message: fmt.Sprintf(format, args...)}
}

func unknownNode(name string) error {
	return &api.Error{Code: api.CodeNotFound, Message: "there is no node " + name, Remedy: "mesh node ls"}
}

// checkNode says what is wrong with a node to be recorded.
func checkNode(in api.NodeAddIn) error {
	switch {
	case !nameForm.MatchString(in.Name):
		return invalid("node name %q must match %s", in.Name, nameForm)
	case in.Address == "":
		return invalid("node %s: no address", in.Name)
	case len(in.Identity) != ed25519.PublicKeySize:
		return invalid("node %s: the identity must be an ed25519 public key", in.Name)
	case len(in.SealingKey) != sealingKeySize:
		return invalid("node %s: the sealing key must be an X25519 public key", in.Name)
	}
	return nil
}

// PutNode records a node. One that is known already is refused unless it is the same machine.
func PutNode(ctx context.Context, tx pgx.Tx, in api.NodeAddIn) error {
	if err := checkNode(in); err != nil {
		return err
	}
	labels := in.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	put, err := tx.Exec(ctx, `
INSERT INTO mesh.nodes AS n (name, address, identity, sealing_key, fingerprint, labels) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET address = excluded.address
WHERE n.identity = excluded.identity AND n.sealing_key = excluded.sealing_key`,
		in.Name, in.Address, in.Identity, in.SealingKey, pki.KeyFingerprint(in.SealingKey), labels)
	if err != nil {
		return fmt.Errorf("record node %s: %w", in.Name, err)
	}
	if put.RowsAffected() == 0 {
		return &api.Error{
			Code: api.CodeConflict, Message: "another machine is recorded as node " + in.Name,
			Remedy: "mesh node forget " + in.Name,
		}
	}
	return nil
}

// Rejoin gives a node the keys of the machine that now stands for it. Whatever was generated
// for it is made anew when it is next composed; what was given has to be given again.
func Rejoin(ctx context.Context, c *extension.Context, tx pgx.Tx, in api.NodeAddIn) error {
	if err := checkNode(in); err != nil {
		return err
	}
	put, err := tx.Exec(ctx, `
UPDATE mesh.nodes SET address = $2, identity = $3, sealing_key = $4, fingerprint = $5 WHERE name = $1`,
		in.Name, in.Address, in.Identity, in.SealingKey, pki.KeyFingerprint(in.SealingKey))
	if err != nil {
		return fmt.Errorf("rejoin node %s: %w", in.Name, err)
	}
	if put.RowsAffected() == 0 {
		return unknownNode(in.Name)
	}
	// The machine counts its reports from the beginning.
	if _, err := tx.Exec(ctx, `DELETE FROM mesh.reports WHERE node = $1`, in.Name); err != nil {
		return fmt.Errorf("rejoin node %s: %w", in.Name, err)
	}
	return InvalidateAll(ctx, c, tx)
}

func (i *Inventory) addNode(ctx context.Context, c *extension.Context, tx pgx.Tx, in api.NodeAddIn) (api.Node, error) {
	if err := PutNode(ctx, tx, in); err != nil {
		return api.Node{}, err
	}
	if err := InvalidateAll(ctx, c, tx); err != nil {
		return api.Node{}, err
	}
	return api.Node{Name: in.Name, Address: in.Address, State: "never-heard", Labels: in.Labels}, nil
}

// forgetNode removes a node with everything recorded of it, its accounts and its queues.
func (i *Inventory) forgetNode(ctx context.Context, c *extension.Context, tx pgx.Tx, name string) error {
	gone, err := tx.Exec(ctx, `DELETE FROM mesh.nodes WHERE name = $1`, name)
	if err != nil {
		return fmt.Errorf("forget node %s: %w", name, err)
	}
	if gone.RowsAffected() == 0 {
		return unknownNode(name)
	}
	if err := DropUnneeded(ctx, tx, i.config.BuiltIn); err != nil {
		return err
	}
	if err := InvalidateAll(ctx, c, tx); err != nil {
		return err
	}
	for _, account := range []string{bus.NodeName(name), bus.BuilderName(name)} {
		if err := i.config.Admin.DeleteAccount(ctx, account); err != nil {
			i.config.Log.Error("broker account not deleted", "node", name, "error", err)
			return &api.Error{Code: api.CodeUnavailable, Message: "the broker did not revoke the accounts of " + name, Remedy: "look at the broker, then mesh node forget " + name}
		}
	}
	c.AfterCommit(tx, func() {
		i.running.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := bus.Undeclare(ctx, i.config.Bus, bus.NodeTopology(name)); err != nil {
				i.config.Log.Warn("queues not deleted", "node", name, "error", err)
			}
		})
	})
	return nil
}

func labelNode(ctx context.Context, c *extension.Context, tx pgx.Tx, in api.NodeLabelIn) (api.Node, error) {
	rows, err := tx.Query(ctx, `SELECT `+nodeColumns+` FROM mesh.nodes WHERE name = $1 FOR UPDATE`, in.Node)
	if err != nil {
		return api.Node{}, fmt.Errorf("label node %s: %w", in.Node, err)
	}
	node, err := pgx.CollectExactlyOneRow(rows, scanNode)
	if errors.Is(err, pgx.ErrNoRows) {
		return api.Node{}, unknownNode(in.Node)
	}
	if err != nil {
		return api.Node{}, fmt.Errorf("label node %s: %w", in.Node, err)
	}
	for _, key := range slices.Sorted(maps.Keys(in.Labels)) {
		if key == "" {
			return api.Node{}, invalid("a label has no name")
		}
		if in.Labels[key] == "" {
			delete(node.Labels, key)
			continue
		}
		node.Labels[key] = in.Labels[key]
	}
	if _, err := tx.Exec(ctx, `UPDATE mesh.nodes SET labels = $2 WHERE name = $1`, in.Node, node.Labels); err != nil {
		return api.Node{}, fmt.Errorf("label node %s: %w", in.Node, err)
	}
	if err := c.Desired.Invalidate(ctx, tx, in.Node); err != nil {
		return api.Node{}, err
	}
	return api.Node{Name: node.Name, Address: node.Address, Labels: node.Labels, Capabilities: node.Capabilities}, nil
}
