package catalogue

import (
	"context"
	"fmt"
	"time"
)

// instanceKept is how long an instance that says nothing stays trusted: its key is sealed to
// until then.
const instanceKept = "30 days"

// introduce publishes this process's key and where its webhooks are reached.
func (s *Service) introduce(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `
INSERT INTO catalogue.instances (fingerprint, public_key, hooks_url, poll, seen_at) VALUES ($1, $2, $3, $4, catalogue.mesh_now())
ON CONFLICT (fingerprint) DO UPDATE SET hooks_url = excluded.hooks_url, poll = excluded.poll, seen_at = excluded.seen_at`,
		s.config.Key.Fingerprint, s.config.Key.Public, s.config.HooksURL, s.config.Poll)
	if err != nil {
		return fmt.Errorf("publish the catalogue's key: %w", err)
	}
	return nil
}

// attend introduces this process again and again, so that one that only waits to lead is not
// taken for gone. The leader's beat does not depend on it.
func (s *Service) attend(ctx context.Context) {
	for sleep(ctx, max(s.config.Poll, time.Minute)) {
		if err := s.introduce(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("say that this catalogue is there", "error", err)
		}
	}
}

// beat says that the leader's loop turns. It is the only write of an idle interval, one row
// for all repositories.
func (s *Service) beat(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `
UPDATE catalogue.instances SET led_at = catalogue.mesh_now(), seen_at = catalogue.mesh_now() WHERE fingerprint = $1`, s.config.Key.Fingerprint)
	if err != nil {
		return fmt.Errorf("say that this catalogue leads: %w", err)
	}
	return nil
}

// forgetInstances drops those not heard of for long, with what was sealed to them.
func (s *Service) forgetInstances(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `
WITH gone AS (DELETE FROM catalogue.instances WHERE seen_at < catalogue.mesh_now() - $1::interval RETURNING fingerprint)
DELETE FROM catalogue.sealed s USING gone WHERE s.recipient = gone.fingerprint`, instanceKept)
	if err != nil {
		return fmt.Errorf("forget catalogues that are gone: %w", err)
	}
	return nil
}
