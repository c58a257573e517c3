package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mesh-control/mesh/internal/pki"
)

// Config says where a registry is and how it is trusted.
type Config struct {
	URL         string // https://host:port
	CA          string // PEM; trusted when no Fingerprint is given
	Fingerprint string // pin of the server's certificate or of its CA
	Token       string // from [SignToken]
	Log         *slog.Logger
	// Outside reaches registries that are not the mesh's; nil is a plain HTTPS client.
	Outside http.RoundTripper
	// Insecure names outside registries spoken to without TLS, as "127.0.0.1:5001".
	Insecure []string
	// Attempts bounds how often a failing request is tried; 0 is [DefaultAttempts]. The
	// context bounds how long.
	Attempts int
	// Delay is about how long is waited before the second attempt, and half as long as before
	// the third; 0 is [DefaultDelay].
	Delay time.Duration
	// Idle ends a transfer that moves nothing for so long; 0 is [DefaultIdle].
	Idle time.Duration
}

// DefaultAttempts spans about a minute of a registry that answers nothing.
const DefaultAttempts = 10

// Delays between attempts double from the first to the last. A server that asks for more is
// heard, up to a bound: an hour asked for by mistake would be an hour of a build.
const (
	DefaultDelay  = 200 * time.Millisecond
	lastDelay     = 15 * time.Second
	maxRetryAfter = time.Minute
)

// Client speaks to the mesh's registry. It is safe for concurrent use.
type Client struct {
	base     *url.URL
	http     *http.Client
	token    string
	log      *slog.Logger
	attempts int
	delay    time.Duration
	outside  outside
}

// NewClient makes a client; nothing is sent yet.
func NewClient(config Config) (*Client, error) {
	base, err := parseBase(config.URL)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := trust(config, base.Hostname())
	if err != nil {
		return nil, fmt.Errorf("trust registry %s: %w", base.Host, err)
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Attempts == 0 {
		config.Attempts = DefaultAttempts
	}
	if config.Delay == 0 {
		config.Delay = DefaultDelay
	}
	if config.Idle == 0 {
		config.Idle = DefaultIdle
	}
	client := &Client{
		base: base,
		http: &http.Client{
			Transport: IdleTimeout(newTransport(tlsConfig, nil), config.Idle),
			// A token goes to the server it was given for, and nowhere that one points to.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		token: config.Token, log: config.Log, attempts: config.Attempts, delay: config.Delay,
	}
	if config.Outside == nil {
		config.Outside = newTransport(nil, http.ProxyFromEnvironment)
	}
	client.outside = outside{transport: IdleTimeout(config.Outside, config.Idle), insecure: config.Insecure, retry: client.retry}
	return client, nil
}

// Close drops idle connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	(&http.Client{Transport: c.outside.transport}).CloseIdleConnections()
}

func parseBase(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil || base.Scheme != "https" || base.Host == "" || base.User != nil || strings.Trim(base.Path, "/") != "" {
		return nil, fmt.Errorf("registry address %q is not https://host:port", text)
	}
	return &url.URL{Scheme: base.Scheme, Host: base.Host}, nil
}

func trust(config Config, host string) (*tls.Config, error) {
	if config.Fingerprint != "" {
		pinned := pki.ClientConfig(config.Fingerprint)
		check := pinned.VerifyConnection
		pinned.VerifyConnection = func(state tls.ConnectionState) error {
			state.ServerName = host // which TLS leaves empty for an IP address
			if err := check(state); err != nil {
				return permanent{err}
			}
			return nil
		}
		return pinned, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(config.CA)) {
		return nil, errors.New("neither fingerprint nor CA certificate given")
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

func newTransport(tlsConfig *tls.Config, proxy func(*http.Request) (*url.URL, error)) *http.Transport {
	return &http.Transport{
		Proxy:                 proxy,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute, // a large blob is hashed before it is answered
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       30 * time.Second,
		DisableCompression:    true,
	}
}

// StatusError is an answer of the registry other than what was asked for.
type StatusError struct {
	Method, Path string
	Status       int
	Message      string        // the registry's own words, shortened
	after        time.Duration // when it asked to come again
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s %s: registry answered %d %s", e.Method, e.Path, e.Status, http.StatusText(e.Status))
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// NotFound says whether err is the registry's answer that it has no such thing.
func NotFound(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Status == http.StatusNotFound
}

type request struct {
	method, path string // path may carry a query
	header       map[string]string
	body         func() (io.ReadCloser, error)
	size         int64
	want         []int
}

// do sends a request until it is answered as wanted. The caller closes the body.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	var response *http.Response
	err := c.retry(ctx, func() (err error) {
		response, err = c.once(ctx, r) //nolint:bodyclose // the caller does
		return err
	})
	return response, err
}

func (c *Client) once(ctx context.Context, r request) (*http.Response, error) {
	var body io.ReadCloser
	if r.body != nil {
		var err error
		if body, err = r.body(); err != nil {
			return nil, err
		}
	}
	target, err := c.base.Parse(r.path)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target.String(), body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = r.size
	if r.body != nil && r.size == 0 {
		_ = body.Close()
		req.Body = http.NoBody
	}
	for key, value := range r.header {
		req.Header.Set(key, value)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reach registry %s: %w", c.base.Host, err)
	}
	if slices.Contains(r.want, response.StatusCode) {
		return response, nil
	}
	return nil, statusError(response)
}

// statusError reads and closes the answer.
func statusError(response *http.Response) *StatusError {
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 8<<10))
	e := &StatusError{
		Method: response.Request.Method, Path: response.Request.URL.Path, Status: response.StatusCode,
		Message: errorMessage(text), after: retryAfter(response.Header.Get("Retry-After"), time.Now()),
	}
	if insufficientScope(response) {
		e.Status, e.Message = http.StatusForbidden, "the token is good and does not reach this"
	}
	return e
}

// insufficientScope tells a good token that does not reach from one that is refused. The
// distribution project's registries answer 401 to both and say which in the challenge; RFC 6750
// has 403 for the first.
func insufficientScope(response *http.Response) bool {
	return response.StatusCode == http.StatusUnauthorized &&
		strings.Contains(response.Header.Get("WWW-Authenticate"), `error="insufficient_scope"`)
}

// errorMessage gives the text of an OCI error answer, or nothing.
func errorMessage(text []byte) string {
	var answer struct {
		Errors []struct {
			Code    string          `json:"code"`
			Message string          `json:"message"`
			Detail  json.RawMessage `json:"detail"`
		} `json:"errors"`
	}
	if json.Unmarshal(text, &answer) != nil || len(answer.Errors) == 0 {
		return ""
	}
	first := answer.Errors[0]
	message := first.Code + ": " + first.Message
	if len(first.Detail) > 0 && string(first.Detail) != "null" {
		message += " " + string(first.Detail)
	}
	return message[:min(len(message), 500)]
}

// retryAfter reads the header in both of its forms, seconds or a date, and gives at most
// [maxRetryAfter].
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil && at.After(now) {
		return min(at.Sub(now), maxRetryAfter)
	}
	return 0
}

// retry calls f until it succeeds, fails for good, or the attempts or the context end. The
// error of the last attempt is the one returned, joined with the context's when that ended.
func (c *Client) retry(ctx context.Context, f func() error) error {
	delay := c.delay
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || !transient(err) || ctx.Err() != nil || attempt >= c.attempts {
			return err
		}
		wait := delay/2 + rand.N(delay/2)
		var status *StatusError
		if errors.As(err, &status) && status.after > wait {
			wait = status.after
		}
		c.log.Debug("registry request failed, trying again", "attempt", attempt, "wait", wait, "error", err)
		if cut := sleep(ctx, wait); cut != nil {
			return fmt.Errorf("%w (%w)", err, cut)
		}
		delay = min(2*delay, lastDelay)
	}
}

// sleep waits, or gives why the context ended.
func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// permanent marks an error that trying again cannot mend.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

func transient(err error) bool {
	var status *StatusError
	if errors.As(err, &status) {
		return status.Status == http.StatusTooManyRequests ||
			status.Status >= 500 && status.Status != http.StatusNotImplemented
	}
	var certificate *tls.CertificateVerificationError
	var marked permanent
	return !errors.As(err, &marked) && !errors.As(err, &certificate) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}
