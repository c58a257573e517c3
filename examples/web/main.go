// Command web greets, and counts its visits in a database that the mesh gave it an account in.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

//go:embed greeting.txt
var greeting string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	file := flag.String("database", "", "file with the database's credential")
	listen := flag.String("listen", ":8080", "address to listen on")
	node := flag.String("node", "", "the node it runs on, to say")
	flag.Parse()
	if err := serve(ctx, *file, *listen, *node); err != nil {
		slog.Error("web ended", "error", err)
		os.Exit(1)
	}
}

// serve answers until ctx ends. The database is not waited for: until it answers, the service
// says that it does not.
func serve(ctx context.Context, file, listen, node string) error {
	visits, err := openVisits(file)
	if err != nil {
		return err
	}
	defer visits.close()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		n, err := visits.count(r.Context())
		if err != nil {
			unavailable(w, err)
			return
		}
		fmt.Fprintf(w, "%s\nvisit %d on %s, counted in database %s\n", strings.TrimSpace(greeting), n, node, visits.database())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := visits.check(r.Context()); err != nil {
			unavailable(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	slog.Info("web listens", "address", listen)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err := server.Shutdown(timeout)
		if ended := <-ended; !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
		return err
	}
}

func unavailable(w http.ResponseWriter, err error) {
	slog.Warn("database does not answer", "error", err)
	http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
}
