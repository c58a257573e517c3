package catalogue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/catalogue/notice"
	"github.com/mesh-control/mesh/internal/giturl"
	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/schema"
)

const (
	// bookAge is how old what is known of the hooks may be: as long as a secret that was
	// replaced or removed may still be taken.
	bookAge = time.Second
	// noticeGap is the least time between two looks at a repository that notices ask for.
	noticeGap = 5 * time.Second
	// hooksTick is how often what notices left to do is done.
	hooksTick = time.Second
)

// hook is what a repository's notices are proved by. secret is "" when it is sealed to other
// keys than this process's.
type hook struct {
	repository int64
	url        string
	version    int64
	secret     string
}

// hookBook is what this process knows of the hooks, and what their notices left to do.
type hookBook struct {
	large   chan struct{} // places for large notices
	nobodys string        // a secret that nobody has

	reading sync.Mutex // held while the database is asked, so that many notices ask once
	read    time.Time
	byKey   map[string][]hook

	mu      sync.Mutex
	asked   map[int64]time.Time // when a look at a repository was last asked for
	waiting map[int64]hook      // whose look is asked for when noticeGap has passed
	counts  map[noticeKey]noticeCount
}

func newHookBook() *hookBook {
	return &hookBook{
		large: make(chan struct{}, largeNotices), nobodys: notice.NewSecret(),
		asked: map[int64]time.Time{}, waiting: map[int64]hook{}, counts: map[noticeKey]noticeCount{},
	}
}

// keyOf is equal for all addresses of one repository. Some forges ignore the case of a path,
// and a hook's secret tells apart what only case does.
func keyOf(u giturl.URL) string { return strings.ToLower(u.Key()) }

// find gives the hooks of the repositories at the addresses.
func (b *hookBook) find(ctx context.Context, s *Service, addresses []giturl.URL) ([]hook, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if time.Since(b.read) > bookAge {
		list, err := s.loadHooks(ctx, b.byKey)
		if err != nil {
			return nil, err
		}
		b.byKey, b.read = list, time.Now()
	}
	var found []hook
	seen := map[int64]bool{}
	for _, address := range addresses {
		for _, h := range b.byKey[keyOf(address)] {
			if !seen[h.repository] {
				seen[h.repository] = true
				found = append(found, h)
			}
		}
	}
	return found, nil
}

// loadHooks reads all hooks, by [keyOf] their repository's URL. Those known are not opened again.
func (s *Service) loadHooks(ctx context.Context, known map[string][]hook) (map[string][]hook, error) {
	opened := map[int64]hook{}
	for _, list := range known {
		for _, h := range list {
			opened[h.version] = h
		}
	}
	rows, err := s.pool.Query(ctx, `
SELECT r.id, r.url, c.version, coalesce(v.recipient, ''), coalesce(v.info, ''), coalesce(v.data, '')
FROM catalogue.secrets c
JOIN catalogue.repositories r ON r.id = c.repository_id AND NOT r.removed
LEFT JOIN catalogue.sealed v ON v.repository_id = c.repository_id AND v.purpose = c.purpose AND v.recipient = $2
WHERE c.purpose = $1 ORDER BY r.id`, pki.RepositoryHook, s.config.Key.Fingerprint)
	if err != nil {
		return nil, fmt.Errorf("load hooks: %w", err)
	}
	found := map[string][]hook{}
	var h hook
	var sealed schema.Sealed
	_, err = pgx.ForEachRow(rows, []any{&h.repository, &h.url, &h.version, &sealed.Recipient, &sealed.Info, &sealed.Data}, func() error {
		u, err := giturl.Parse(h.url)
		if err != nil {
			return nil //nolint:nilerr // no notice can name it
		}
		h.secret = opened[h.version].secret
		if h.secret == "" && sealed.Recipient != "" {
			plaintext, err := pki.OpenRepository(s.config.Key.private, pki.RepositoryHook, h.url, sealed)
			if err != nil {
				s.log.Warn("open a hook's secret", "repository", h.url, "error", err)
			}
			h.secret = string(plaintext)
		}
		found[keyOf(u)] = append(found[keyOf(u)], h)
		sealed.Data = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load hooks: %w", err)
	}
	return found, nil
}

// lookSoon asks for a look at a repository: at once, or when the last one asked for is
// noticeGap ago. However many ask meanwhile, it is one look, and it comes after all of them.
func (s *Service) lookSoon(ctx context.Context, h hook) error {
	b := s.hooks
	b.mu.Lock()
	if time.Since(b.asked[h.repository]) < noticeGap {
		b.waiting[h.repository] = h
		b.mu.Unlock()
		return nil
	}
	b.asked[h.repository] = time.Now()
	b.mu.Unlock()
	if err := s.requestLook(ctx, h); err != nil {
		b.mu.Lock()
		delete(b.asked, h.repository)
		b.mu.Unlock()
		return err
	}
	return nil
}

func (s *Service) requestLook(ctx context.Context, h hook) error {
	s.log.Info("noticed a push", "repository", h.url)
	if _, err := s.pool.Exec(ctx, `SELECT catalogue.request_refresh_repository($1)`, h.url); err != nil {
		return fmt.Errorf("ask for a look at %s: %w", h.url, err)
	}
	return nil
}

// keepHooks does what notices left to do until ctx ends: the looks that had to wait, and
// the counts. When there is nothing, it asks nothing of the database.
func (s *Service) keepHooks(ctx context.Context) {
	for sleep(ctx, hooksTick) {
		for _, h := range s.hooks.due() {
			if err := s.lookSoon(ctx, h); err != nil && ctx.Err() == nil {
				s.log.Warn("act upon a notice", "error", err)
				s.hooks.again(h)
			}
		}
		s.keepCounts(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	s.keepCounts(ctx)
}

// due takes the hooks whose look may be asked for now.
func (b *hookBook) due() []hook {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []hook
	for id, at := range b.asked {
		if time.Since(at) < noticeGap {
			continue
		}
		delete(b.asked, id)
	}
	for id, h := range b.waiting {
		if _, early := b.asked[id]; !early {
			delete(b.waiting, id)
			list = append(list, h)
		}
	}
	return list
}

func (b *hookBook) again(h hook) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[h.repository] = h
}
