package registry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

// A fault is how a registry fails on one request.
type fault struct {
	name  string
	acted bool // the registry did what it was asked and the answer was lost
	// To a registry these look like others do, or like nothing at all: one kind of it is enough.
	embedded  bool
	needsBody bool
	fail      func(w http.ResponseWriter, r *http.Request, pass http.Handler)
}

var faults = []fault{
	{name: "500", fail: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusInternalServerError)
	}},
	{name: "500 after half of it", embedded: true, needsBody: true, fail: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		w.WriteHeader(http.StatusInternalServerError)
	}},
	{name: "429", embedded: true, fail: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}},
	{name: "reset", embedded: true, fail: func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }},
	{name: "reset after it acted", acted: true, fail: func(_ http.ResponseWriter, r *http.Request, pass http.Handler) {
		pass.ServeHTTP(&deaf{header: http.Header{}}, r)
		panic(http.ErrAbortHandler)
	}},
}

// deaf is a client that went away.
type deaf struct{ header http.Header }

func (d *deaf) Header() http.Header         { return d.header }
func (d *deaf) Write(p []byte) (int, error) { return len(p), nil }
func (d *deaf) WriteHeader(int)             {}

// eachFault runs a test for every kind of registry and publication, for the faults named, and
// for every request the publication makes: they are counted, on an undisturbed one.
func eachFault(t *testing.T, faults []fault, test func(t *testing.T, store *registrytest.Registry, p publication, f fault, failing int)) {
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		for what, prepare := range publications {
			// To 2.8 a bundle is an archive and an image, a mirror several images, and what is signed
			// several small ones: it is the client that differs, and the embedded registry hears of
			// all of them.
			if testing.Short() && what != "archive" || store.Process != nil && (what == "bundle" || what == "mirror" || what == "signed") {
				continue
			}
			t.Run(what, func(t *testing.T) {
				p := prepare(t)
				methods := p.requests(t, store)
				for _, f := range faults {
					if store.Process != nil && f.embedded {
						continue
					}
					for i, method := range methods {
						if f.needsBody && method != http.MethodPut {
							continue
						}
						store.Empty(t)
						test(t, store, p, f, i+1)
						if t.Failed() {
							t.Fatalf("with %s at request %d of %d, a %s", f.name, i+1, len(methods), method)
						}
					}
				}
			})
		}
	})
}

// fragile gives a client that reaches the registry through the front, and forgets quickly.
func (p publication) fragile(t *testing.T, f *front, store *registrytest.Registry, attempts int) *registry.Client {
	t.Helper()
	config := f.config(store)
	config.Attempts, config.Delay, config.Outside = attempts, time.Millisecond, p.outside
	return registrytest.Client(t, config)
}

// requests gives the methods of the requests that an undisturbed publication makes, in order.
func (p publication) requests(t *testing.T, store *registrytest.Registry) (methods []string) {
	t.Helper()
	store.Empty(t)
	f := newFront(t, store)
	var mu sync.Mutex
	f.spoil = func(_ int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
		mu.Lock()
		methods = append(methods, r.Method)
		mu.Unlock()
		pass.ServeHTTP(w, r)
	}
	if _, err := p.run(t.Context(), p.fragile(t, f, store, 1)); err != nil {
		t.Fatal(err)
	}
	if len(methods) < 8 {
		t.Fatalf("the publication made the requests %v only: this test shows nothing", methods)
	}
	return methods
}

// The registry fails at one request and works before and after it: the publication gets over it
// by itself.
func TestAFaultAtAnyRequestIsGotOver(t *testing.T) {
	t.Parallel()
	eachFault(t, faults, func(t *testing.T, store *registrytest.Registry, p publication, f fault, failing int) {
		front := newFront(t, store)
		defer front.Close()
		var lost atomic.Bool // a session that was opened and never heard of
		front.spoil = func(n int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if n != failing {
				pass.ServeHTTP(w, r)
				return
			}
			lost.Store(f.acted && r.Method == http.MethodPost)
			f.fail(w, r, pass)
		}
		if _, err := p.run(t.Context(), p.fragile(t, front, store, 3)); err != nil {
			t.Error(err)
		}
		if modules := checkPublished(t, store, p); modules != 1 {
			t.Errorf("%d modules resolve", modules)
		}
		if open := uploads(t, store); open > 0 && !lost.Load() {
			t.Errorf("%d upload sessions are left", open)
		}
	})
}

// The registry fails at one request and at all that follow: the publication fails, nothing
// resolves that names something missing, and doing it again works.
func TestS1_094_ARegistryFailingFromAnyRequestOnLeavesNothingThatNamesSomethingMissing(t *testing.T) {
	t.Parallel()
	eachFault(t, []fault{faults[0], faults[len(faults)-1]}, func(t *testing.T, store *registrytest.Registry, p publication, f fault, failing int) {
		front := newFront(t, store)
		defer front.Close()
		front.spoil = func(n int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if n < failing {
				pass.ServeHTTP(w, r)
				return
			}
			if n > failing && f.acted {
				panic(http.ErrAbortHandler)
			}
			f.fail(w, r, pass)
		}
		if _, err := p.run(t.Context(), p.fragile(t, front, store, 1)); err == nil {
			t.Error("the publication did not fail")
		}
		checkPublished(t, store, p)
		if err := p.again(t, store); err != nil {
			t.Errorf("doing it again: %v", err)
		}
	})
}

// again publishes on a registry that works, after something went wrong.
func (p publication) again(t *testing.T, store *registrytest.Registry) error {
	t.Helper()
	config := store.Config()
	config.Outside, config.Attempts = p.outside, 2
	client := registrytest.Client(t, config)
	defer client.Close()
	digest, err := p.run(t.Context(), client)
	if err != nil {
		return err
	}
	if _, err := client.Manifest(t.Context(), "web", digest); err != nil {
		t.Errorf("after doing it again: %v", err)
	}
	if modules := checkPublished(t, store, p); modules != 1 {
		t.Errorf("after doing it again %d modules resolve", modules)
	}
	return nil
}

func TestARetryAfterIsHeardUpToABound(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{"1": time.Second, "3600": time.Minute, "999999999999": time.Minute} {
		if got := registry.RetryAfter(header); got != want {
			t.Errorf("Retry-After %s: waits %s, want %s", header, got, want)
		}
	}
}

// stalled lets the first bytes through and then nothing, until the test ends.
func stalled(t *testing.T) func(int, http.ResponseWriter, *http.Request, http.Handler) {
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	return func(_ int, w http.ResponseWriter, r *http.Request, _ http.Handler) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("the beginning"))
			_ = http.NewResponseController(w).Flush()
		}
		<-end
	}
}

func TestATransferThatMovesNothingIsGivenUp(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	f := newFront(t, store)
	stall := stalled(t)
	f.spoil = stall
	config := f.config(store)
	config.Attempts, config.Idle = 1, 50*time.Millisecond
	client := registrytest.Client(t, config)
	digest := digestOf("never there")
	body, _, err := client.Blob(t.Context(), "modules/web", digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(body); !errors.Is(err, registry.ErrStalled) {
		t.Errorf("download: %v", err)
	}
	_ = body.Close()
	// An upload whose other end takes nothing: more than fits between the two.
	f.spoil = func(n int, w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.Method == http.MethodPut {
			stall(n, w, r, pass)
			return
		}
		pass.ServeHTTP(w, r)
	}
	const size = 64 << 20
	open := func() (io.ReadCloser, error) { return io.NopCloser(io.LimitReader(zeros{}, size)), nil }
	if err := client.PushBlob(t.Context(), "modules/web", digest, size, open); !errors.Is(err, registry.ErrStalled) {
		t.Errorf("upload: %v", err)
	}
	if open := uploads(t, store); open != 0 {
		t.Errorf("%d upload sessions are left", open)
	}
}

func digestOf(text string) string { return schema.Digest([]byte(text)) }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A slow transfer is not a stalled one, and a total deadline would not know the difference.
func TestASlowTransferGoesOn(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	f := newFront(t, store)
	text := "slowly, piece by piece, for longer than nothing may move"
	if err := pushText(t, store.Client(t), "modules/web", text); err != nil {
		t.Fatal(err)
	}
	const idle = 200 * time.Millisecond
	f.spoil = func(_ int, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		for _, piece := range []byte(text) {
			_, _ = w.Write([]byte{piece})
			_ = http.NewResponseController(w).Flush()
			time.Sleep(idle / 20) // what is tested is time
		}
	}
	config := f.config(store)
	config.Idle = idle
	body, _, err := registrytest.Client(t, config).Blob(t.Context(), "modules/web", digestOf(text))
	if err == nil {
		defer body.Close()
		_, err = io.ReadAll(body)
	}
	if err != nil {
		t.Error(err)
	}
}

// A build that is cancelled while it pushes gives the session back all the same. (2.8 has no
// request for it once some bytes have arrived.)
func TestACancelledUploadLeavesNoSession(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	for range 10 { // at different moments of the registry's
		ctx, cancel := context.WithCancel(t.Context())
		var pieces int
		read := func(p []byte) (int, error) {
			if pieces++; pieces == 20 {
				cancel()
			}
			return len(p), nil
		}
		err := store.Client(t).PushBlob(ctx, "modules/web", digestOf("never"), 1<<30, func() (io.ReadCloser, error) {
			return io.NopCloser(readerFunc(read)), nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if open := uploads(t, store); open != 0 {
		t.Errorf("%d upload sessions are left", open)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
