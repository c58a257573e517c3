package catalogue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/giturl"
	"github.com/mesh-control/mesh/internal/store"
)

// Config of a [Service]; zero fields take the defaults named.
type Config struct {
	Poll         time.Duration // between two looks at a repository, ± 10 %. Default 60 s, at least 1 s
	MaxBackoff   time.Duration // ceiling between tries of one that fails. Default 10 min, never below Poll
	AskTimeout   time.Duration // one ls-remote. Default 30 s
	FetchTimeout time.Duration // one fetch, walk and parse. Default 10 min
	Asks         int           // ls-remotes at a time. Default 64
	Fetches      int           // fetches at a time. Default 2, since each holds a commit in memory
	// Source says how git is spoken.
	Source source.Config
	// Key is what this process is trusted under; see [LoadKey]. Default: one made now, for
	// as long as the process lives.
	Key Key
	// HooksURL is where forges reach this process's [Service.Hooks], or [HooksPath] when only
	// that is known; "" when it takes none.
	HooksURL string
	Registry prometheus.Registerer
	Log      *slog.Logger
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.Poll, time.Minute)
	c.Poll = max(c.Poll, time.Second)
	set(&c.MaxBackoff, 10*time.Minute)
	c.MaxBackoff = max(c.MaxBackoff, c.Poll)
	set(&c.AskTimeout, 30*time.Second)
	set(&c.FetchTimeout, 10*time.Minute)
	if c.Asks == 0 {
		c.Asks = 64
	}
	if c.Fetches == 0 {
		c.Fetches = 2
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Source.Registry == nil {
		c.Source.Registry = c.Registry
	}
	return c
}

// Service polls and records. Make it with [New].
type Service struct {
	config  Config
	pool    *store.Pool
	git     *source.Client
	metrics *metrics
	log     *slog.Logger
	// The slots of repositories whose last try went well, of those never tried, and of those
	// whose last try failed: none of them waits for one of another kind.
	healthy, fresh, failing lane
	hooks                   *hookBook
	leading                 atomic.Bool
	connected               atomic.Bool
}

// lane bounds how many repositories do a thing at a time.
type lane struct{ ask, fetch chan struct{} }

func newLane(asks, fetches int) lane {
	return lane{ask: make(chan struct{}, asks), fetch: make(chan struct{}, fetches)}
}

// New makes a service on a database whose schema [Migrate] brought up to date.
func New(pool *store.Pool, config Config) (*Service, error) {
	config = config.withDefaults()
	if config.Key.Fingerprint == "" {
		var err error
		if config.Key, err = NewKey(); err != nil {
			return nil, err
		}
	}
	git, err := source.New(config.Source)
	if err != nil {
		return nil, fmt.Errorf("prepare git: %w", err)
	}
	return &Service{
		config: config, pool: pool, git: git, log: config.Log,
		metrics: newMetrics(config.Registry),
		hooks:   newHookBook(),
		healthy: newLane(config.Asks, config.Fetches),
		fresh:   newLane(max(config.Asks/4, 1), max(config.Fetches/2, 1)),
		failing: newLane(max(config.Asks/4, 1), max(config.Fetches/2, 1)),
	}, nil
}

// lane is the slots a repository waits for.
func (s *Service) lane(r repository) *lane {
	switch r.State {
	case StateOK:
		return &s.healthy
	case stateNew:
		return &s.fresh
	}
	return &s.failing
}

// Leading says whether this process is the one that polls.
func (s *Service) Leading() bool { return s.leading.Load() }

// Connected says whether the database answers: leading, or waiting to.
func (s *Service) Connected() bool { return s.connected.Load() }

// The pauses of the leader's loop.
const (
	firstPause  = 200 * time.Millisecond
	longestWait = 15 * time.Second
)

// Run polls until ctx ends, for as long as this process leads, and tries for ever to lead
// again. It returns nil when ctx ended.
func (s *Service) Run(ctx context.Context) error {
	defer s.git.Close()
	var notices sync.WaitGroup
	defer notices.Wait()
	notices.Go(func() { s.keepHooks(ctx) })
	pause := firstPause
	for {
		began := time.Now()
		err := s.lead(ctx)
		s.leading.Store(false)
		s.connected.Store(false)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > longestWait {
			pause = firstPause
		}
		s.log.Warn("the database is gone; connecting again", "error", err, "pause", pause.String())
		if !sleep(ctx, pause) {
			return nil
		}
		pause = min(pause*2, longestWait)
	}
}

// lead holds the leader's lock on one connection and polls until that connection or ctx
// ends. The same connection listens: whoever cannot hear has no business leading.
func (s *Service) lead(ctx context.Context) error {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack()
	defer closeConn(conn)
	s.connected.Store(true)
	if _, err := conn.Exec(ctx, `LISTEN catalogue`); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := s.introduce(ctx); err != nil {
		return err
	}
	inner, ended := context.WithCancel(ctx)
	var attending sync.WaitGroup
	defer attending.Wait()
	defer ended()
	attending.Go(func() { s.attend(inner) })
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtext('catalogue.leader'))`); err != nil {
		return fmt.Errorf("lead: %w", err)
	}
	s.leading.Store(true)
	s.log.Info("leading")
	if err := errors.Join(s.prune(ctx), s.forgetInstances(ctx)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	crew := &crew{service: s, loops: &loops, members: map[int64]*member{}}
	crew.watcher = newWatcher(s.log, crew.wakeWatched)
	loops.Go(func() { crew.watcher.run(ctx) })
	var spoke, synced time.Time
	for {
		// Whatever a lost notification would have told is found here at the latest.
		if time.Since(synced) >= s.config.Poll {
			if err := errors.Join(crew.sync(ctx), s.reseal(ctx)); err != nil {
				return err
			}
			synced = time.Now()
		}
		if time.Since(spoke) >= s.config.Poll/2 {
			if err := s.beat(ctx); err != nil {
				return err
			}
			spoke = time.Now()
		}
		heard, err := hear(ctx, conn, s.config.Poll-time.Since(synced))
		if err != nil {
			return err
		}
		if id, ok := strings.CutPrefix(heard, "refresh "); ok {
			err = crew.refresh(ctx, id)
		} else if heard != "" {
			synced = time.Time{}
		}
		if err != nil {
			return err
		}
	}
}

// hear waits for a notification, and gives its text, or "" when none came in time on a
// connection that is well.
func hear(ctx context.Context, conn *pgx.Conn, patience time.Duration) (string, error) {
	wait, stop := context.WithTimeout(ctx, max(patience, 0))
	defer stop()
	heard, err := conn.WaitForNotification(wait)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return heard.Payload, nil
	case wait.Err() != nil:
		err = conn.Ping(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	return "", nil
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server ends what a lost connection held
}

// crew are the loops under way, one for each repository.
type crew struct {
	service *Service
	loops   *sync.WaitGroup
	watcher *watcher
	mu      sync.Mutex
	members map[int64]*member
}

// member is the loop of one repository. wake holds at most one request to look now.
type member struct {
	id      int64
	wake    chan struct{}
	stop    context.CancelFunc
	watch   string
	refresh time.Time
}

func (m *member) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// sync brings the loops in line with the table.
func (c *crew) sync(ctx context.Context) error {
	list, err := c.service.loadRepositories(ctx)
	if err != nil {
		return err
	}
	c.service.metrics.count(list)
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted := map[int64]bool{}
	for _, r := range list {
		switch {
		case r.Removed:
			c.end(r.ID)
			if err := c.service.recordUnwatched(ctx, r); err != nil && !errors.Is(err, errOvertaken) {
				c.service.log.Warn("end a repository", "repository", r.URL, "error", err)
			}
		case r.Suspended:
		default:
			wanted[r.ID] = true
			c.keep(ctx, r)
		}
	}
	for id := range c.members {
		if !wanted[id] {
			c.end(id)
		}
	}
	return nil
}

// refresh looks again at the one repository with this id. What it finds that is not a wish for
// a look is left to sync.
func (c *crew) refresh(ctx context.Context, id string) error {
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil //nolint:nilerr // nobody of ours said it
	}
	r, err := c.service.loadRepository(ctx, number)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil || r.Removed || r.Suspended {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(ctx, r)
	return nil
}

func (c *crew) keep(ctx context.Context, r repository) {
	m := c.members[r.ID]
	if m == nil {
		inner, stop := context.WithCancel(ctx)
		m = &member{id: r.ID, wake: make(chan struct{}, 1), stop: stop, refresh: r.Refresh}
		c.members[r.ID] = m
		c.loops.Go(func() { c.service.follow(inner, m, c.watcher) })
	} else if r.Refresh.After(m.refresh) {
		m.refresh = r.Refresh
		m.nudge()
	}
	if directory := watchDirectory(r); directory != m.watch {
		m.watch = directory
		c.watcher.set(r.ID, directory)
	}
}

func (c *crew) end(id int64) {
	if m := c.members[id]; m != nil {
		m.stop()
		c.watcher.set(id, "")
		delete(c.members, id)
	}
}

func (c *crew) wakeWatched(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[id]; m != nil {
		m.nudge()
	}
}

// watchDirectory is the directory whose refs are watched for r: the one named, or the
// repository itself when it is on this machine.
func watchDirectory(r repository) string {
	if r.Watch != "" {
		return r.Watch
	}
	directory, _ := giturl.Local(r.URL)
	return directory
}

// sleep waits, and says whether it did to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// jitter spreads d by 10 % either way, so that repositories added together drift apart.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
