package registry

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the one storage a server has
	"github.com/sirupsen/logrus"
)

// ServerConfig is what a [Server] needs.
type ServerConfig struct {
	Dir         string            // where blobs lie; made when missing
	Certificate []byte            // PEM, leaf first
	Key         []byte            // PEM
	Public      ed25519.PublicKey // of the key that signs tokens
	Listen      []string          // addresses, as "127.0.0.1:5000"; port 0 picks one
	Log         *slog.Logger
}

// Server is an OCI registry on disk, behind TLS and tokens.
type Server struct {
	app       *handlers.App
	collector *collector
	http      *http.Server
	listeners []net.Listener
}

// storeThreads bounds what a collection does to the disk at once.
const storeThreads = 25

// drain is how long a stopping server waits for requests under way.
const drain = 10 * time.Second

// NewServer opens the store and the listeners. The server answers once [Server.Serve] runs.
func NewServer(config ServerConfig) (*Server, error) {
	if len(config.Public) != ed25519.PublicKeySize {
		return nil, errors.New("start registry: the public key of tokens is missing")
	}
	if len(config.Listen) == 0 {
		return nil, errors.New("start registry: no address to listen on")
	}
	certificate, err := tls.X509KeyPair(config.Certificate, config.Key)
	if err != nil {
		return nil, fmt.Errorf("start registry: certificate: %w", err)
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start registry: %w", err)
	}
	forwardLog(config.Log)
	app, err := newApp(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("start registry: %w", err)
	}
	store := newHeldStore(config.Dir, filesystem.New(filesystem.DriverParameters{RootDirectory: config.Dir, MaxThreads: storeThreads}))
	collector := newCollector(store, config.Log)
	guarded := &guard{public: config.Public, next: &uploads{store: config.Dir, next: app, log: config.Log}, store: store, collector: collector, log: config.Log}
	server := &Server{app: app, collector: collector, http: &http.Server{
		Handler:           unstalled(recoverer(guarded, config.Log)),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(config.Log.Handler(), slog.LevelDebug),
	}}
	// HTTP/1.1 only: one connection per transfer is faster for large blobs than streams of one.
	tlsConfig := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	for _, address := range config.Listen {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start registry: %w", err), server.Close())
		}
		server.listeners = append(server.listeners, tls.NewListener(listener, tlsConfig))
	}
	return server, nil
}

// newApp makes the library's application, which panics where others return an error.
func newApp(dir string) (app *handlers.App, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("open store %s: %v", dir, problem)
		}
	}()
	config := &configuration.Configuration{
		Storage: configuration.Storage{
			"filesystem": {"rootdirectory": dir},
			"delete":     {"enabled": true},
			"redirect":   {"disable": true},
			"maintenance": {"uploadpurging": map[any]any{
				"enabled": true, "age": "24h", "interval": "6h", "dryrun": false,
			}},
		},
		Catalog: configuration.Catalog{MaxEntries: 1000},
	}
	// Uploads address themselves relative to whatever name the client used.
	config.HTTP.RelativeURLs = true
	return handlers.NewApp(context.Background(), config), nil
}

// Addresses are those the server listens on, with their ports, in the order of the configuration.
func (s *Server) Addresses() []string {
	var addresses []string
	for _, listener := range s.listeners {
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses
}

// Serve answers until ctx ends, then lets requests under way finish and closes the server.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, len(s.listeners))
	for _, listener := range s.listeners {
		go func() { failed <- s.http.Serve(listener) }()
	}
	var err error
	select {
	case <-ctx.Done():
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		err = s.http.Shutdown(timeout)
	case err = <-failed:
	}
	return errors.Join(err, s.Close())
}

// Close ends the server at once. It is for a server that never served; [Server.Serve] closes its own.
func (s *Server) Close() error {
	err := s.http.Close()
	for _, listener := range s.listeners {
		_ = listener.Close() // those the HTTP server took are closed already
	}
	s.collector.close()
	return errors.Join(err, s.app.Shutdown())
}

// recoverer turns a panic in the library into an answer that a client retries.
func recoverer(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			problem := recover()
			if problem == nil {
				return
			}
			if problem == http.ErrAbortHandler { //nolint:errorlint // net/http compares the value itself
				panic(problem)
			}
			log.Error("registry panicked", "method", r.Method, "path", r.URL.Path, "error", problem)
			refuse(w, http.StatusInternalServerError, "UNKNOWN", "the registry failed on this request")
		}()
		next.ServeHTTP(w, r)
	})
}

// forwardLog sends what the library logs to log, warnings and worse. The library has one
// logger for the process, so the server started last has it.
func forwardLog(log *slog.Logger) {
	library := logrus.StandardLogger()
	library.SetOutput(io.Discard)
	library.SetLevel(logrus.WarnLevel)
	library.ReplaceHooks(logrus.LevelHooks{})
	library.AddHook(logHook{log})
}

type logHook struct{ log *slog.Logger }

func (logHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h logHook) Fire(entry *logrus.Entry) error {
	// The library reports every refused request as an error; to the mesh it is the client's.
	level := slog.LevelDebug
	if entry.Data["err.code"] == nil && entry.Level <= logrus.ErrorLevel {
		level = slog.LevelError
	}
	h.log.Log(context.Background(), level, entry.Message, "detail", entry.Data["err.detail"], "path", entry.Data["http.request.uri"])
	return nil
}
