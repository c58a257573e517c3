package catalogue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

// credential opens what a repository is read with; nil when it has none. One that this
// process cannot open is an [*git.Error].
func (s *Service) credential(ctx context.Context, base repository) (*git.Credential, error) {
	var sealed schema.Sealed
	err := s.pool.QueryRow(ctx, `
SELECT coalesce(v.recipient, ''), coalesce(v.info, ''), coalesce(v.data, '')
FROM catalogue.secrets c
LEFT JOIN catalogue.sealed v ON v.repository_id = c.repository_id AND v.purpose = c.purpose AND v.recipient = $3
WHERE c.repository_id = $1 AND c.purpose = $2`, base.ID, pki.RepositoryCredential, s.config.Key.Fingerprint).
		Scan(&sealed.Recipient, &sealed.Info, &sealed.Data)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the credential of %s: %w", base.URL, err)
	}
	if sealed.Recipient == "" {
		return nil, git.Failure(git.AuthenticationFailed, "%s: its credential is sealed to another key than this catalogue's, which is new; give it again", base.URL)
	}
	var c git.Credential
	plaintext, err := pki.OpenRepository(s.config.Key.private, pki.RepositoryCredential, base.URL, sealed)
	if err != nil || json.Unmarshal(plaintext, &c) != nil {
		return nil, git.Failure(git.AuthenticationFailed, "%s: its credential does not open; give it again", base.URL)
	}
	return &c, nil
}

// missing is a secret that this process holds and somebody else who should does not.
type missing struct {
	Repository int64
	URL        string
	Purpose    string
	Version    int64
	Mine       schema.Sealed
	Public     []byte
}

// reseal gives every key what it lacks: credentials to other catalogues and to builders,
// hooks' secrets to other catalogues. Secrets this process cannot open are left to one that can.
func (s *Service) reseal(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, `
SELECT r.id, r.url, c.purpose, c.version, mine.recipient, mine.info, mine.data, t.public_key
FROM catalogue.secrets c
JOIN catalogue.repositories r ON r.id = c.repository_id
JOIN catalogue.sealed mine ON mine.repository_id = c.repository_id AND mine.purpose = c.purpose AND mine.recipient = $1
CROSS JOIN (SELECT fingerprint, public_key, true AS every FROM catalogue.instances
  UNION SELECT fingerprint, public_key, false FROM catalogue.recipients) t
WHERE (t.every OR c.purpose = $2) AND NOT EXISTS (SELECT FROM catalogue.sealed s
  WHERE s.repository_id = c.repository_id AND s.purpose = c.purpose AND s.recipient = t.fingerprint)
ORDER BY r.id, c.purpose`, s.config.Key.Fingerprint, pki.RepositoryCredential)
	if err != nil {
		return fmt.Errorf("look for secrets to seal: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (missing, error) {
		var m missing
		err := row.Scan(&m.Repository, &m.URL, &m.Purpose, &m.Version, &m.Mine.Recipient, &m.Mine.Info, &m.Mine.Data, &m.Public)
		return m, err
	})
	if err != nil {
		return fmt.Errorf("look for secrets to seal: %w", err)
	}
	for _, m := range list {
		if err := s.sealFor(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) sealFor(ctx context.Context, m missing) error {
	plaintext, err := pki.OpenRepository(s.config.Key.private, m.Purpose, m.URL, m.Mine)
	var sealed schema.Sealed
	if err == nil {
		sealed, err = pki.SealRepository(m.Public, m.Purpose, m.URL, m.Version, plaintext)
	}
	if err != nil {
		s.log.Warn("seal a repository's secret to one more key", "repository", m.URL, "purpose", m.Purpose, "error", err)
		return nil
	}
	// The row of the secret is held, so that a value given meanwhile is not joined by an old one.
	_, err = s.pool.Exec(ctx, `
WITH current AS (SELECT FROM catalogue.secrets WHERE repository_id = $1 AND purpose = $2 AND version = $3 FOR SHARE)
INSERT INTO catalogue.sealed (repository_id, purpose, recipient, info, data) SELECT $1, $2, $4::text, $5::text, $6::bytea FROM current ON CONFLICT DO NOTHING`,
		m.Repository, m.Purpose, m.Version, sealed.Recipient, sealed.Info, sealed.Data)
	if err != nil {
		return fmt.Errorf("keep the %s of %s: %w", m.Purpose, m.URL, err)
	}
	return nil
}
