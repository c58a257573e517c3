package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Proxy lets the engine on this machine pull from the mesh's registry as 127.0.0.1:<port>:
// engines trust loopback over plain HTTP, so neither certificates nor tokens have to be given
// to them, and the registry can move without any image reference changing. It passes reading
// on and nothing else. Bytes stream through; none are kept.
type Proxy struct {
	listener net.Listener
	http     *http.Server
	target   atomic.Pointer[httputil.ReverseProxy]
	log      *slog.Logger
}

// NewProxy listens on a loopback address. It answers 503 until [Proxy.Update] has told it
// where the registry is.
func NewProxy(listen string, log *slog.Logger) (*Proxy, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("start registry proxy: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("start registry proxy: %s is not a loopback address, and others would pull with this node's token", host)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("start registry proxy: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{listener: listener, log: log}
	p.http = &http.Server{
		Handler: p, ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return p, nil
}

// Address is where the proxy listens, host:port. An image registry.mesh/x@sha256:… is pulled
// as <Address>/x@sha256:….
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Update makes the proxy use another registry or token from the next request on.
func (p *Proxy) Update(config Config) error {
	base, err := parseBase(config.URL)
	if err != nil {
		return err
	}
	tlsConfig, err := trust(config, base.Hostname())
	if err != nil {
		return fmt.Errorf("trust registry %s: %w", base.Host, err)
	}
	old := p.target.Swap(p.forward(base, newTransport(tlsConfig, nil), config.Token))
	if old != nil {
		old.Transport.(*http.Transport).CloseIdleConnections()
	}
	return nil
}

func (p *Proxy) forward(base *url.URL, transport *http.Transport, token string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Host = base.Host
			r.Out.Header.Del("Cookie")
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
		ModifyResponse: func(response *http.Response) error {
			if insufficientScope(response) {
				response.StatusCode, response.Status = http.StatusForbidden, "403 Forbidden"
			}
			// An engine that sees a challenge goes looking for a token server.
			response.Header.Del("Www-Authenticate")
			response.Header.Del("Set-Cookie")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p.log.Warn("registry not reached", "registry", base.Host, "path", r.URL.Path, "error", err)
			refuse(w, http.StatusBadGateway, "UNAVAILABLE", "the mesh's registry at "+base.Host+" could not be reached")
		},
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
}

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !loopbackHost(r.Host): // a page in a browser, sent here by a name of its own
		refuse(w, http.StatusForbidden, "DENIED", "this proxy answers to its loopback address only")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this proxy passes reading on and nothing else")
	case !strings.HasPrefix(r.URL.Path, "/v2/"):
		refuse(w, http.StatusNotFound, "NAME_UNKNOWN", "not a path of a registry")
	default:
		target := p.target.Load()
		if target == nil {
			refuse(w, http.StatusServiceUnavailable, "UNAVAILABLE", "this node has not been told of a registry yet")
			return
		}
		target.ServeHTTP(w, r)
	}
}

func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Serve answers until ctx ends.
func (p *Proxy) Serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- p.http.Serve(p.listener) }()
	var err error
	select {
	case <-ctx.Done():
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		err = p.http.Shutdown(timeout)
		<-failed //nolint:errcheck // Serve ends because of Shutdown, which has the error
	case err = <-failed:
	}
	return errors.Join(err, p.Close())
}

// Close ends the proxy at once.
func (p *Proxy) Close() error {
	err := p.http.Close()
	_ = p.listener.Close() // closed already when it was served
	if target := p.target.Load(); target != nil {
		target.Transport.(*http.Transport).CloseIdleConnections()
	}
	return err
}
