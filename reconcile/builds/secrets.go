package builds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/giturl"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/inventory"
	"github.com/mesh-control/mesh/schema"
)

// setCredential seals what a repository is read with to the keys of the catalogue, which
// seals it on to the builders. The plaintext is kept nowhere.
func setCredential(ctx context.Context, tx pgx.Tx, in api.RepositoryCredentialIn) (api.RepositoryCredentialOut, error) {
	if err := checkCredential(in.URL, in.Credential); err != nil {
		return api.RepositoryCredentialOut{}, err
	}
	plaintext, err := json.Marshal(in.Credential)
	if err != nil {
		return api.RepositoryCredentialOut{}, fmt.Errorf("encode a credential: %w", err)
	}
	kind := api.CredentialToken
	if in.Credential.PrivateKey != "" {
		kind = api.CredentialSSHKey
	}
	return api.RepositoryCredentialOut{URL: in.URL, Kind: kind}, setSecret(ctx, tx, in.URL, pki.RepositoryCredential, kind, plaintext)
}

// checkCredential refuses what could not be used with the repository's address.
func checkCredential(address string, c schema.RepositoryCredential) error {
	refuse := func(message, remedy string) error {
		return &api.Error{Code: api.CodeInvalidInput, Message: message, Remedy: remedy}
	}
	u, err := giturl.Parse(address)
	if err != nil {
		return refuse(err.Error(), "mesh repo ls lists the repositories watched")
	}
	switch {
	case u.Scheme == giturl.File:
		return refuse(u.String()+" is on the catalogue's machine and takes no credential", "")
	case u.Scheme == giturl.SSH && c.PrivateKey == "":
		return refuse("an ssh address is read with a private key", "mesh repo credential "+address+" --ssh-key F --known-hosts F")
	case u.Scheme == giturl.SSH && len(c.HostKeys) == 0:
		return refuse("no host key is pinned", "name the known_hosts file that holds the server's: --known-hosts F")
	case u.Scheme != giturl.SSH && (c.Password == "" || c.PrivateKey != ""):
		return refuse("an http address is read with a token", "mesh repo credential "+address+" --token-file F")
	}
	if err := git.CheckCredential(&c); err != nil {
		return refuse(err.Error(), "give an OpenSSH private key and lines of known_hosts")
	}
	return nil
}

// setSecret seals a repository's secret to every catalogue's key and has the catalogue keep it.
func setSecret(ctx context.Context, tx pgx.Tx, url, purpose, kind string, plaintext []byte) error {
	ready, err := hasTable(ctx, tx, instancesTable)
	if err != nil {
		return err
	}
	if !ready {
		return noCatalogue()
	}
	rows, err := tx.Query(ctx, `SELECT public_key FROM catalogue.instances ORDER BY fingerprint`)
	if err != nil {
		return fmt.Errorf("read the catalogue's keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return fmt.Errorf("read the catalogue's keys: %w", err)
	}
	if len(keys) == 0 {
		return noCatalogue()
	}
	var version int64
	if err := tx.QueryRow(ctx, `SELECT catalogue.request_secret_version()`).Scan(&version); err != nil {
		return fmt.Errorf("number the %s of %s: %w", purpose, url, err)
	}
	sealed := make([]schema.Sealed, len(keys))
	for i, key := range keys {
		if sealed[i], err = pki.SealRepository(key, purpose, url, version, plaintext); err != nil {
			return err
		}
	}
	return requestRepository(ctx, tx, "request_set_secret", url, purpose, kind, version, sealed)
}

// removeSecret makes the catalogue forget a repository's secret, at every key.
func removeSecret(ctx context.Context, tx pgx.Tx, url, purpose string) error {
	ready, err := hasTable(ctx, tx, instancesTable)
	if err != nil {
		return err
	}
	if !ready {
		return noCatalogue()
	}
	var known bool
	if err := tx.QueryRow(ctx, `SELECT catalogue.request_remove_secret($1, $2)`, url, purpose).Scan(&known); err != nil {
		return fmt.Errorf("remove the %s of %s: %w", purpose, url, err)
	}
	if !known {
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("repository %s has no %s", url, purpose), Remedy: "mesh repo show " + url}
	}
	return nil
}

// readCredentials tells of each repository what it is read with, and which builders can.
func readCredentials(ctx context.Context, q inventory.Queryer, repositories []api.Repository) error {
	ready, err := hasTable(ctx, q, instancesTable)
	if err != nil || !ready {
		return err
	}
	rows, err := q.Query(ctx, `
SELECT r.url, c.kind, c.given_at,
  coalesce((SELECT array_agg(t.name ORDER BY t.name) FROM catalogue.sealed s JOIN catalogue.recipients t ON t.fingerprint = s.recipient
    WHERE s.repository_id = c.repository_id AND s.purpose = c.purpose), '{}')
FROM catalogue.secrets c JOIN catalogue.repositories r ON r.id = c.repository_id WHERE c.purpose = $1`, pki.RepositoryCredential)
	if err != nil {
		return fmt.Errorf("read credentials of repositories: %w", err)
	}
	var url string
	var info api.RepositoryCredentialInfo
	_, err = pgx.ForEachRow(rows, []any{&url, &info.Kind, &info.Given, &info.Builders}, func() error {
		at := slices.IndexFunc(repositories, func(r api.Repository) bool { return r.URL == url })
		if at >= 0 {
			found := info
			repositories[at].Credential = &found
		}
		info.Builders = nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("read credentials of repositories: %w", err)
	}
	return nil
}

// sealedWait is how long a job waits for the catalogue to seal its repository's credential to
// some builder. A builder that gets it without says what is missing.
const sealedWait = time.Minute

// jobCredentials are what a job's builders read its repository with. Ready is false while the
// catalogue has not sealed the credential to any builder that has a key.
func jobCredentials(ctx context.Context, q inventory.Queryer, url string) (credentials map[string]schema.Sealed, ready bool, err error) {
	has, err := hasTable(ctx, q, instancesTable)
	if err != nil || !has {
		return nil, true, err
	}
	rows, err := q.Query(ctx, `
SELECT coalesce(t.name, ''), coalesce(s.recipient, ''), coalesce(s.info, ''), coalesce(s.data, '')
FROM catalogue.secrets c JOIN catalogue.repositories r ON r.id = c.repository_id
LEFT JOIN (catalogue.sealed s JOIN catalogue.recipients t ON t.fingerprint = s.recipient)
  ON s.repository_id = c.repository_id AND s.purpose = c.purpose
WHERE r.url = $1 AND NOT r.removed AND c.purpose = $2`, url, pki.RepositoryCredential)
	if err != nil {
		return nil, false, fmt.Errorf("read the credential of %s: %w", url, err)
	}
	credentials, ready = map[string]schema.Sealed{}, true
	var name string
	var sealed schema.Sealed
	_, err = pgx.ForEachRow(rows, []any{&name, &sealed.Recipient, &sealed.Info, &sealed.Data}, func() error {
		if ready = name != ""; ready {
			credentials[name] = sealed
		}
		sealed.Data = nil
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("read the credential of %s: %w", url, err)
	}
	return credentials, ready, nil
}
