package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// The control socket in the state directory answers local commands, to root only:
// GET /status (a report), GET /healthz, GET /metrics, POST /plan and POST /apply with a
// declaration, GET /plan for the target.
const controlSocket = "control.sock"

// dirSocket names a socket by its directory's descriptor: the address of a Unix socket is at
// most 107 bytes, the path of a state directory may be longer.
func dirSocket(layout Layout) (address string, release func(), err error) {
	dir, err := os.Open(layout.State)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), controlSocket), func() { dir.Close() }, nil
}

func (h *Host) serveControl() (stop func(), err error) {
	address, release, err := dirSocket(h.layout)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(h.layout.state(controlSocket))
	listener, err := net.Listen("unix", address)
	if err != nil {
		release()
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	if err := os.Chmod(h.layout.state(controlSocket), 0o600); err != nil {
		return nil, err
	}
	server := &http.Server{Handler: h.control(), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	return func() {
		_ = server.Close()
		<-done
		_ = os.Remove(h.layout.state(controlSocket))
		release()
	}, nil
}

func (h *Host) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		answer(w, h.Report(r.Context()), nil)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { h.metrics(r.Context(), w) })
	mux.HandleFunc("GET /plan", func(w http.ResponseWriter, r *http.Request) {
		steps, err := h.Plan(r.Context())
		answer(w, steps, err)
	})
	mux.HandleFunc("POST /plan", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			answer(w, nil, err)
			return
		}
		steps, err := h.PlanFor(r.Context(), "declaration", data)
		answer(w, steps, err)
	})
	mux.HandleFunc("POST /apply", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err == nil {
			err = h.Accept("declaration", data)
		}
		answer(w, h.remembered().Seen, err)
	})
	return mux
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (h *Host) metrics(ctx context.Context, w io.Writer) {
	r := h.Report(ctx)
	phases := map[string]int{}
	for _, one := range r.Resources {
		phases[one.Phase]++
	}
	fmt.Fprintf(w, "mesh_host_generation_seen %d\nmesh_host_generation_applied %d\n", r.Seen, r.Applied)
	for _, phase := range []string{PhaseApplied, PhaseRunning, PhaseStarting, PhaseFailing, PhaseFailed, PhaseStopped} {
		fmt.Fprintf(w, "mesh_host_resources{phase=%q} %d\n", phase, phases[phase])
	}
}

// Ask sends a local command to the host that runs on layout. With none there the error is in
// the chain of [ErrNotRunning].
func Ask(ctx context.Context, layout Layout, method, path string, body io.Reader, into any) error {
	address, release, err := dirSocket(layout)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	defer release()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://host"+path, body)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
		return errors.New(string(text))
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// ErrNotRunning says that no host answers on a state directory.
var ErrNotRunning = errors.New("no host is running here")
