package builds

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/internal/provenance"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// IssueSigningKey records the key that a builder signs with from now on, in place of the one it
// had: the one derived from the private key it is issued.
func IssueSigningKey(ctx context.Context, tx pgx.Tx, builder string, private []byte) error {
	key, err := pki.BuilderSigningKey(private)
	if err != nil {
		return err
	}
	if err := withdrawSigningKeys(ctx, tx, builder); err != nil {
		return err
	}
	return putSigningKey(ctx, tx, builder, key.Public().(ed25519.PublicKey))
}

func putSigningKey(ctx context.Context, tx pgx.Tx, builder string, public ed25519.PublicKey) error {
	_, err := tx.Exec(ctx, `INSERT INTO mesh.signing_keys (public_key, builder) VALUES ($1, $2) ON CONFLICT DO NOTHING`, []byte(public), builder)
	if err != nil {
		return fmt.Errorf("record signing key of builder %s: %w", builder, err)
	}
	return nil
}

func withdrawSigningKeys(ctx context.Context, tx pgx.Tx, builder string) error {
	_, err := tx.Exec(ctx, `UPDATE mesh.signing_keys SET withdrawn_at = mesh.mesh_now() WHERE builder = $1 AND withdrawn_at IS NULL`, builder)
	if err != nil {
		return fmt.Errorf("withdraw signing key of builder %s: %w", builder, err)
	}
	return nil
}

// AdoptSigningKey records the key of a builder that has built already and builds nothing more.
func AdoptSigningKey(ctx context.Context, tx pgx.Tx, builder string, public ed25519.PublicKey) error {
	if err := putSigningKey(ctx, tx, builder, public); err != nil {
		return err
	}
	return withdrawSigningKeys(ctx, tx, builder)
}

// SigningKeys lists every key that builders of this mesh were issued, those withdrawn included.
func SigningKeys(ctx context.Context, q inventory.Queryer) ([]provenance.Key, error) {
	rows, err := q.Query(ctx, `SELECT builder, public_key, withdrawn_at FROM mesh.signing_keys ORDER BY issued_at, public_key`)
	if err != nil {
		return nil, fmt.Errorf("read builders' signing keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (provenance.Key, error) {
		var key provenance.Key
		var public []byte
		var withdrawn *time.Time
		err := row.Scan(&key.Builder, &public, &withdrawn)
		key.Public = public
		if withdrawn != nil {
			key.Withdrawn = *withdrawn
		}
		return key, err
	})
	if err != nil {
		return nil, fmt.Errorf("read builders' signing keys: %w", err)
	}
	return keys, nil
}

// Recorded is what the mesh has on record of a build, and when its result came in.
func Recorded(ctx context.Context, q inventory.Queryer, id string) (provenance.Build, time.Time, error) {
	b := provenance.Build{ID: id}
	var artifacts []byte
	var recorded *time.Time
	var source schema.Source
	err := q.QueryRow(ctx, `
SELECT module, digest, repository, path, commit, tree, recipe, builder, artifacts, recorded_at FROM mesh.builds WHERE id = $1`, id).
		Scan(&b.Module, &b.Digest, &source.Repository, &source.Path, &source.Commit, &source.Tree, &b.Recipe, &b.Builder, &artifacts, &recorded)
	if err != nil {
		return b, time.Time{}, fmt.Errorf("read record of build %s: %w", id, err)
	}
	b.Source = source
	if len(artifacts) > 0 {
		if err := json.Unmarshal(artifacts, &b.Artifacts); err != nil {
			return b, time.Time{}, fmt.Errorf("read record of build %s: %w", id, err)
		}
	}
	if recorded == nil {
		return b, time.Time{}, nil
	}
	return b, *recorded, nil
}
