package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How a service that ends is started again.
const (
	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// A process that ran this long has shown that it can: the back-off begins anew.
	stableAfter = 10 * time.Second
	// This many restarts within loopWindow are a restart loop, which is a failure.
	loopRestarts = 3
	loopWindow   = time.Minute
	maxLog       = 10 << 20
)

// Supervisor runs services. Each has a record on disk with its process, so that the next life
// of the host takes over what this one started; ending a Supervisor ends no service.
type Supervisor struct {
	records, logs string
	log           *slog.Logger
	changed       func()      // called after anything a report shows has changed
	at            func(Point) // where a test may end the host

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	units   map[string]*unit
}

// record is what the disk knows of a service.
type record struct {
	ID       string  `json:"id"`
	Spec     string  `json:"spec"`
	Trigger  string  `json:"trigger,omitempty"`
	Program  Program `json:"program"`
	Pid      int     `json:"pid"`
	Start    uint64  `json:"start"`
	Boot     string  `json:"boot"`
	Restarts int     `json:"restarts"`
	LastExit *int    `json:"lastExit,omitempty"`
	Since    int64   `json:"since"`           // Unix seconds
	Ended    bool    `json:"ended,omitempty"` // it is over and its policy leaves it so
	// Fallback is what ran before and comes back if this does not prove itself; nil when it has.
	Fallback *Fallback `json:"fallback,omitempty"`
}

// Fallback is an earlier version of a service.
type Fallback struct {
	Spec    string  `json:"spec"`
	Program Program `json:"program"`
	// Archive is the path of the archive the program is in, and Version what it pointed at,
	// when that changed too.
	Archive string `json:"archive,omitempty"`
	Version string `json:"version,omitempty"`
	// ArchiveID is the archive's resource.
	ArchiveID string `json:"archiveID,omitempty"`
}

// unit is one service under supervision.
type unit struct {
	record  record
	proc    *process // nil while it does not run
	err     error    // why it could not be started
	recent  []time.Time
	stop    context.CancelFunc
	stopped chan struct{}
}

// ServiceStatus is a service as it is now.
type ServiceStatus struct {
	Spec, Trigger string
	Program       Program
	Running       bool
	Ended         bool
	Looping       bool
	Err           error
	Restarts      int
	LastExit      *int
	Since         time.Time
	Pid           int
	Fallback      *Fallback
}

// NewSupervisor takes over the services whose records are in the state directory.
func NewSupervisor(layout Layout, log *slog.Logger, changed func(), at func(Point)) (*Supervisor, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Supervisor{
		records: layout.state("services"), logs: layout.state("logs"),
		log: log, changed: changed, at: at, ctx: ctx, cancel: cancel, units: map[string]*unit{},
	}
	if err := os.MkdirAll(s.records, 0o700); err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(s.records, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		var r record
		if err := readJSON(name, &r); err != nil {
			log.Warn("a service's record is damaged; the service is looked at as missing", "file", name, "error", err)
			continue
		}
		s.adopt(r)
	}
	return s, nil
}

// adopt knows a service again; one whose process is gone is left down for the next pass.
func (s *Supervisor) adopt(r record) {
	u := &unit{record: r}
	s.units[r.ID] = u
	if r.Boot != bootID() || r.Pid == 0 {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	proc, err := adoptProcess(ctx, r.Pid, r.Start)
	if err != nil {
		cancel()
		return
	}
	u.proc, u.stop, u.stopped = proc, cancel, make(chan struct{})
	s.running.Go(func() { s.keep(ctx, u, time.Unix(r.Since, 0)) })
}

// Close lets go of the services, which run on.
func (s *Supervisor) Close() {
	s.cancel()
	s.running.Wait()
}

// Start runs a service, in place of the one that has the id. An error says why it could not
// be started; it is then not tried again by itself.
func (s *Supervisor) Start(id, spec, trigger string, p Program, fallback *Fallback) error {
	s.Stop(id)
	u := &unit{record: record{ID: id, Spec: spec, Trigger: trigger, Program: p, Fallback: fallback}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.units[id] = u
	if err := s.launch(u); err != nil {
		u.err = err
		return errors.Join(err, s.save(u))
	}
	ctx, cancel := context.WithCancel(s.ctx)
	u.stop, u.stopped = cancel, make(chan struct{})
	s.running.Go(func() { s.keep(ctx, u, time.Now()) })
	return nil
}

// launch makes the process, records it, and only then lets it run its program: a host that is
// killed in between leaves nothing running that the next one does not know. mu is held.
func (s *Supervisor) launch(u *unit) error {
	proc, err := holdProcess(u.record.Program, s.logFile(u.record.ID))
	if err != nil {
		return err
	}
	s.at(PointHeld)
	u.record.Pid, u.record.Start, u.record.Boot = proc.pid, proc.start, bootID()
	u.record.Since, u.record.Ended = time.Now().Unix(), false
	if err := s.save(u); err != nil {
		proc.held.close()
		<-proc.exit
		u.record.Pid = 0
		return fmt.Errorf("record the service: %w", err)
	}
	s.at(PointRecorded)
	if err := proc.held.release(); err != nil {
		<-proc.exit
		u.record.Pid = 0
		return err
	}
	u.proc, u.err = proc, nil
	return nil
}

// Proved drops the fallback.
func (s *Supervisor) Proved(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.units[id]
	if u == nil || u.record.Fallback == nil {
		return nil
	}
	u.record.Fallback = nil
	return s.save(u)
}

func (s *Supervisor) save(u *unit) error {
	return writeJSON(filepath.Join(s.records, fileName(u.record.ID)+".json"), u.record)
}

func fileName(id string) string { return strings.ReplaceAll(id, "/", ".") }

func (s *Supervisor) logFile(id string) string {
	return filepath.Join(s.logs, fileName(id)+".log")
}

// keep restarts a service as its policy says, until it is told to stop or to let go.
func (s *Supervisor) keep(ctx context.Context, u *unit, started time.Time) {
	defer close(u.stopped)
	backoff := firstBackoff
	for {
		s.mu.Lock()
		proc := u.proc
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case code := <-proc.exit:
			if !s.exited(u, code) {
				s.changed()
				return
			}
		}
		s.changed()
		if time.Since(started) >= stableAfter {
			backoff = firstBackoff
		}
		for again := true; again; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(backoff):
			}
			backoff = min(2*backoff, maxBackoff)
			started = time.Now()
			s.mu.Lock()
			u.record.Restarts++
			u.recent = append(u.recent, started)
			err := s.launch(u)
			u.err = err
			again = err != nil
			s.mu.Unlock()
			if err != nil {
				s.log.Warn("a service cannot be restarted", "resource", u.record.ID, "error", err)
			}
			s.changed()
		}
	}
}

// exited records an exit and says whether the service is to be started again.
func (s *Supervisor) exited(u *unit, code int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.proc, u.record.Pid = nil, 0
	u.record.Since = time.Now().Unix()
	if code != noExit {
		u.record.LastExit = &code
	}
	policy := u.record.Program.Restart
	u.record.Ended = policy == "no" || policy == "on-failure" && code == 0
	if err := s.save(u); err != nil {
		s.log.Warn("record a service's exit", "resource", u.record.ID, "error", err)
	}
	return !u.record.Ended
}

// Stop ends a service's whole process group, and returns when it has ended. The record stays
// until [Supervisor.Remove].
func (s *Supervisor) Stop(id string) {
	s.mu.Lock()
	u := s.units[id]
	s.mu.Unlock()
	if u == nil || u.stop == nil {
		return
	}
	// The keeper goes first, so that it does not start anew what is being stopped.
	u.stop()
	<-u.stopped
	s.mu.Lock()
	proc := u.proc
	timeout := time.Duration(u.record.Program.StopTimeout) * time.Second
	s.mu.Unlock()
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	if proc != nil {
		terminate(proc, stopSignal(u.record.Program.StopSignal), timeout)
	}
	s.mu.Lock()
	u.proc, u.record.Pid, u.stop = nil, 0, nil
	s.mu.Unlock()
}

// stopSignal is the signal of a name, with or without SIG; SIGTERM when there is none of it.
func stopSignal(name string) syscall.Signal {
	if name != "" && !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if signal := unix.SignalNum(name); signal != 0 {
		return signal
	}
	return syscall.SIGTERM
}

// terminate asks, then kills. Whether the process has ended is read from /proc, because the
// one who waited for it has let go.
func terminate(p *process, ask syscall.Signal, timeout time.Duration) {
	gone := func(within time.Duration) bool {
		deadline := time.Now().Add(within)
		for {
			if now, err := startTicks(p.pid); err != nil || now != p.start {
				return true
			}
			if time.Now().After(deadline) {
				return false
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	p.signal(ask)
	if !gone(timeout) {
		p.signal(syscall.SIGKILL)
		gone(timeout)
	}
	// What the program left behind in its group goes with it.
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
}

// Remove stops a service and forgets it; its log stays.
func (s *Supervisor) Remove(id string) error {
	s.Stop(id)
	s.mu.Lock()
	delete(s.units, id)
	s.mu.Unlock()
	err := os.Remove(filepath.Join(s.records, fileName(id)+".json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget service %s: %w", id, err)
	}
	return nil
}

// Status of every service, by id.
func (s *Supervisor) Status() map[string]ServiceStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]ServiceStatus{}
	for id, u := range s.units {
		all[id] = ServiceStatus{
			Spec: u.record.Spec, Trigger: u.record.Trigger, Program: u.record.Program,
			Running: u.proc != nil, Ended: u.record.Ended, Looping: looping(u.recent), Err: u.err,
			Restarts: u.record.Restarts, LastExit: u.record.LastExit,
			Since: time.Unix(u.record.Since, 0), Pid: u.record.Pid, Fallback: u.record.Fallback,
		}
	}
	return all
}

// looping says whether restarts at these times are a restart loop now.
func looping(restarts []time.Time) bool {
	if len(restarts) < loopRestarts {
		return false
	}
	return time.Since(restarts[len(restarts)-loopRestarts]) < loopWindow
}

// Tail gives the end of a service's log, at most 2 KiB.
func (s *Supervisor) Tail(id string) string {
	f, err := os.Open(s.logFile(id))
	if err != nil {
		return ""
	}
	defer f.Close()
	const size = 2 << 10
	if info, err := f.Stat(); err == nil && info.Size() > size {
		_, _ = f.Seek(-size, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(f, size))
	return strings.TrimSpace(string(data))
}

// keepTail copies the last maxLog bytes of a log.
func keepTail(from, to string, size int64) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.NewSectionReader(f, max(0, size-maxLog), maxLog))
	return errors.Join(err, out.Close())
}

// TrimLogs copies the end of logs that have grown too large and empties them in place, since
// they are open for appending. What is written in between is lost.
func (s *Supervisor) TrimLogs() {
	names, _ := filepath.Glob(filepath.Join(s.logs, "*.log"))
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || info.Size() < maxLog {
			continue
		}
		if err := keepTail(name, name+".1", info.Size()); err == nil {
			_ = os.Truncate(name, 0)
		}
	}
}
