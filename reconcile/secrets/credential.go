package secrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/compose"
	"github.com/mesh-control/mesh/schema"
)

// credentialRow is what is stored of one relation.
type credentialRow struct {
	provider, providerNode, variant string
	landing                         schema.Sealed
	request                         *schema.Sealed
	version                         int
}

func readCredential(ctx context.Context, tx pgx.Tx, consumer, node, provision string) (credentialRow, error) {
	var r credentialRow
	err := tx.QueryRow(ctx, `
SELECT provider, provider_node, variant, landing, request, version FROM mesh.credentials
WHERE consumer = $1 AND node = $2 AND provision = $3 FOR UPDATE`, consumer, node, provision).
		Scan(&r.provider, &r.providerNode, &r.variant, &r.landing, &r.request, &r.version)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return r, fmt.Errorf("read credential of %s for %s on %s: %w", consumer, provision, node, err)
	}
	return r, nil
}

// credential makes the credential of one relation, or leaves it if it is as it would be
// made. It answers the providers' nodes whose grants it changed.
func (s *Secrets) credential(ctx context.Context, tx pgx.Tx, to recipient, consumer string, binding compose.Binding) ([]string, error) {
	before, err := readCredential(ctx, tx, consumer, to.node, binding.Provision)
	if err != nil {
		return nil, err
	}
	if binding.BuiltIn() {
		return s.storeCredential(ctx, tx, to, consumer, binding, before)
	}
	provider, err := lockRecipient(ctx, tx, binding.Node)
	if err != nil {
		return nil, err
	}
	variant := binding.Host + ":" + strconv.Itoa(binding.Port) + binding.Grants
	same := before.provider == binding.Module && before.providerNode == binding.Node && before.variant == variant
	if same && before.landing.Recipient == to.fingerprint && before.request != nil && before.request.Recipient == provider.fingerprint {
		return nil, nil
	}
	user, password := account(consumer, to.node), generate()
	landing := schema.Credential{Host: binding.Host, Port: binding.Port, User: user, Password: password, Database: user}
	request := schema.Grant{
		Schema: schema.Version, Consumer: consumer, Node: to.node, Provision: binding.Provision,
		User: user, Password: password, Database: user,
	}
	after := credentialRow{provider: binding.Module, providerNode: binding.Node, variant: variant, version: before.version + 1}
	if after.landing, err = s.sealDocument(to, consumer, "credential."+binding.Provision, after.version, landing); err != nil {
		return nil, err
	}
	name := "grant." + binding.Provision + "." + consumer + "." + to.node
	sealed, err := s.sealDocument(provider, binding.Module, name, after.version, request)
	if err != nil {
		return nil, err
	}
	after.request = &sealed
	if err := put(ctx, tx, consumer, to.node, binding.Provision, after); err != nil {
		return nil, err
	}
	changed := []string{binding.Node}
	if before.providerNode != "" && before.providerNode != binding.Node {
		changed = append(changed, before.providerNode)
	}
	return changed, nil
}

// storeCredential makes the credential for the foundation's registry: nobody has to grant
// it, because the registry believes the token.
func (s *Secrets) storeCredential(ctx context.Context, tx pgx.Tx, to recipient, consumer string, binding compose.Binding, before credentialRow) ([]string, error) {
	registry := s.config.Registry
	if registry == nil || binding.Provision != schema.ConfigArtifactStore {
		return nil, fmt.Errorf("make credential of %s: the foundation does not provide %s", consumer, binding.Provision)
	}
	credential := schema.Credential{URL: registry.URL, CA: registry.CA, Fingerprint: registry.Fingerprint}
	facts, err := schema.Canonical(credential)
	if err != nil {
		return nil, fmt.Errorf("make credential of %s: %w", consumer, err)
	}
	variant := schema.Digest(append(facts, registry.Key...))
	if before.provider == binding.Module && before.variant == variant && before.landing.Recipient == to.fingerprint {
		return nil, nil
	}
	credential.Password = registry.Token(consumer+"/"+to.node, slices.Contains(s.config.Pushes, consumer))
	after := credentialRow{provider: binding.Module, variant: variant, version: before.version + 1}
	if after.landing, err = s.sealDocument(to, consumer, "credential."+binding.Provision, after.version, credential); err != nil {
		return nil, err
	}
	var changed []string
	if before.providerNode != "" {
		changed = append(changed, before.providerNode)
	}
	return changed, put(ctx, tx, consumer, to.node, binding.Provision, after)
}

func (s *Secrets) sealDocument(to recipient, module, name string, version int, document any) (schema.Sealed, error) {
	plaintext, err := schema.Canonical(document)
	if err != nil {
		return schema.Sealed{}, fmt.Errorf("seal %s of %s: %w", name, module, err)
	}
	return s.seal(to, module, name, version, plaintext)
}

func put(ctx context.Context, tx pgx.Tx, consumer, node, provision string, r credentialRow) error {
	_, err := tx.Exec(ctx, `
INSERT INTO mesh.credentials (consumer, node, provision, provider, provider_node, variant, landing, request, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (consumer, node, provision) DO UPDATE SET provider = excluded.provider,
  provider_node = excluded.provider_node, variant = excluded.variant, landing = excluded.landing,
  request = excluded.request, version = excluded.version, made_at = excluded.made_at`,
		consumer, node, provision, r.provider, r.providerNode, r.variant, r.landing, r.request, r.version)
	if err != nil {
		return fmt.Errorf("store credential of %s for %s on %s: %w", consumer, provision, node, err)
	}
	return nil
}
