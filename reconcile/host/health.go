package host

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mesh-control/mesh/reconcile/host/engine"
	"github.com/mesh-control/mesh/schema"
)

const (
	probeTimeout = 3 * time.Second
	// A container or service without a health check has to be up at this many samples.
	samples     = 5
	sampleEvery = 300 * time.Millisecond

	defaultWindow   = 30 * time.Second
	defaultInterval = 10 * time.Second
)

// prober asks whether what runs also works.
type prober struct {
	engine *engine.Engine
	web    *http.Client
}

// newProber makes one; certificates are not checked, since nothing is told to who answers.
func newProber(e *engine.Engine) *prober {
	return &prober{engine: e, web: &http.Client{
		Timeout:   probeTimeout,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // see above
	}}
}

// probe runs a health check once. container is the engine's id, "" for a service.
func (p *prober) probe(ctx context.Context, health schema.Health, container string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	switch {
	case health.HTTP != "":
		return p.http(ctx, health)
	case health.TCP != "":
		return connects(ctx, health.TCP, container != "")
	case len(health.Exec) > 0 && container != "":
		code, err := p.engine.Exec(ctx, container, health.Exec)
		if err != nil {
			return fmt.Errorf("health check: %w", err)
		}
		if code != 0 {
			return fmt.Errorf("health check: %s ended with exit code %d", health.Exec[0], code)
		}
		return nil
	case len(health.Exec) > 0:
		return runCheck(ctx, health.Exec)
	}
	return errors.New("health check: it says neither http, tcp nor exec")
}

// hangUp is how long a peer may take to hang up on a connection that it has taken for nobody.
const hangUp = 250 * time.Millisecond

// connects succeeds when somebody takes a connection. Before a container may stand an engine's
// proxy, which takes one for a program that does not listen yet, and hangs up: there it has to
// be kept as well. A server waits to be spoken to, or speaks first.
func connects(ctx context.Context, address string, proxied bool) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if errors.Is(err, syscall.ECONNRESET) && !proxied {
		return nil // taken, and reset before we looked; a port where nobody listens refuses
	}
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	defer conn.Close()
	if !proxied {
		return nil
	}
	if err := conn.SetReadDeadline(time.Now().Add(hangUp)); err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("health check: %s takes connections and hangs up: %w", address, err)
	}
	return nil
}

// runCheck runs a health check on this machine. Its process group ends with ctx, and a child
// that keeps its output open is not waited for.
func runCheck(ctx context.Context, words []string) error {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	out := &firstBytes{left: 200}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if cmd.Process != nil { // its children end with it
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("health check: %s: %w: %s", words[0], err, out.text.String())
	}
	return nil
}

// firstBytes keeps the beginning of what is written.
type firstBytes struct {
	text strings.Builder
	left int
}

func (f *firstBytes) Write(p []byte) (int, error) {
	kept := p[:min(len(p), f.left)]
	f.left -= len(kept)
	f.text.Write(kept)
	return len(p), nil
}

func (p *prober) http(ctx context.Context, health schema.Health) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, health.HTTP, nil)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	response, err := p.web.Do(request)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	response.Body.Close()
	healthy := response.StatusCode >= 200 && response.StatusCode <= 299
	if len(health.Status) > 0 {
		healthy = slices.Contains(health.Status, response.StatusCode)
	}
	if !healthy {
		return fmt.Errorf("health check: %s answers %s", health.HTTP, response.Status)
	}
	return nil
}

// vital is what a look at a container or service shows.
type vital struct {
	running  bool
	ended    bool // over, as its policy allows
	exit     *int
	restarts int
	problem  string // why it could not be started
}

// prove watches something that was just started until it has shown that it works: its health
// check succeeds within the window, or it is up at every sample without a restart. look
// gives its vital signs.
func (p *prober) prove(ctx context.Context, health *schema.Health, container string, look func() (vital, error)) error {
	first, err := look()
	if err != nil {
		return err
	}
	window, last := defaultWindow, error(nil)
	if health != nil && health.Window > 0 {
		window = time.Duration(health.Window) * time.Second
	}
	deadline := time.Now().Add(window)
	for sample := 1; ; sample++ {
		now, err := look()
		if err != nil {
			return err
		}
		switch done, err := verdict(now, first, health != nil); {
		case err != nil:
			return err
		case done:
			return nil
		}
		if health == nil && sample >= samples {
			return nil
		}
		if health != nil && now.running {
			if last = p.probe(ctx, *health, container); last == nil {
				return nil
			}
		}
		if health != nil && time.Now().After(deadline) {
			if last == nil {
				last = errors.New("it is not running")
			}
			return fmt.Errorf("not healthy within %s: %w", window, last)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(sampleEvery):
		}
	}
}

// verdict judges vital signs: done when nothing more is to be waited for.
func verdict(now, first vital, checked bool) (done bool, err error) {
	restarts := now.restarts - first.restarts
	switch {
	case now.problem != "":
		return false, errors.New(now.problem)
	case now.ended && now.exit != nil && *now.exit != 0:
		return false, fmt.Errorf("it ended with exit code %d", *now.exit)
	case now.ended:
		return true, nil
	case restarts >= loopRestarts, restarts > 0 && !checked:
		return false, fmt.Errorf("it restarts again and again%s", exitText(now.exit))
	case !now.running && !checked:
		return false, fmt.Errorf("it does not stay up%s", exitText(now.exit))
	}
	return false, nil
}

func exitText(code *int) string {
	if code == nil {
		return ""
	}
	return fmt.Sprintf(", last with exit code %d", *code)
}
