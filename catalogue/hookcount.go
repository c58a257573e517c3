package catalogue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// noticeKey is what notices are counted by.
type noticeKey struct{ Subject, Outcome, Forge string }

type noticeCount struct {
	n     int64
	first time.Time
	last  time.Time
}

const (
	// countsHeld bounds the counts that wait to be stored. Beyond it subjects are dropped:
	// whoever sends without a secret may name a new one each time.
	countsHeld = 256
	// unmatchedKept bounds the rows of repositories that nobody watches; the latest stay.
	unmatchedKept = 100
	// noticesKept is how long a count that no longer grows is kept.
	noticesKept = "90 days"
)

func (s *Service) countNotice(v verdict, forge string) {
	s.metrics.notices.WithLabelValues(forge, v.outcome).Inc()
	s.hooks.add(noticeKey{v.subject, v.outcome, forge}, noticeCount{1, time.Now(), time.Now()})
}

func (b *hookBook) add(key noticeKey, c noticeCount) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.counts[key]; !ok && len(b.counts) >= countsHeld {
		key.Subject = ""
	}
	if have, ok := b.counts[key]; ok {
		c.n, c.first = c.n+have.n, have.first
	}
	b.counts[key] = c
}

func (b *hookBook) takeCounts() map[noticeKey]noticeCount {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.counts
	b.counts = map[noticeKey]noticeCount{}
	return taken
}

// keepCounts stores what was counted since it last did. A flood costs one transaction a tick.
func (s *Service) keepCounts(ctx context.Context) {
	counts := s.hooks.takeCounts()
	if len(counts) == 0 {
		return
	}
	if err := s.storeCounts(ctx, counts); err != nil {
		if ctx.Err() == nil {
			s.log.Warn("keep the counts of notices", "error", err)
		}
		for key, c := range counts {
			s.hooks.add(key, c)
		}
	}
}

func (s *Service) storeCounts(ctx context.Context, counts map[noticeKey]noticeCount) error {
	keys := make([]noticeKey, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	// One order for all processes, so that none waits for another in a circle.
	slices.SortFunc(keys, func(a, b noticeKey) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Forge, b.Forge))
	})
	batch := &pgx.Batch{}
	unmatched := false
	for _, key := range keys {
		c := counts[key]
		unmatched = unmatched || key.Outcome == noticeUnmatched
		batch.Queue(`
INSERT INTO catalogue.hooks AS h (subject, outcome, forge, count, first_at, last_at)
VALUES ($1, $2, $3, $4, catalogue.mesh_now() - make_interval(secs => $5), catalogue.mesh_now() - make_interval(secs => $6))
ON CONFLICT (subject, outcome, forge) DO UPDATE SET count = h.count + excluded.count, last_at = greatest(h.last_at, excluded.last_at)`,
			key.Subject, key.Outcome, key.Forge, c.n, time.Since(c.first).Seconds(), time.Since(c.last).Seconds())
	}
	if unmatched {
		batch.Queue(`
DELETE FROM catalogue.hooks WHERE outcome = $1 AND ctid NOT IN
  (SELECT ctid FROM catalogue.hooks WHERE outcome = $1 ORDER BY last_at DESC, subject LIMIT $2)`, noticeUnmatched, unmatchedKept)
	}
	err := s.pool.Tx(ctx, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	if err != nil {
		return fmt.Errorf("count notices: %w", err)
	}
	return nil
}
