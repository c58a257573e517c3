package extension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
)

// maxBody bounds a request's body.
const maxBody = 8 << 20

// problem is an error on the wire (RFC 9457) with our own members.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	api.Error
}

// Handler serves the methods, /api/openapi.json, /metrics, /healthz (the process runs) and
// /readyz (it serves and its database answers).
func (h *Host) Handler(auth Authenticator) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answerText(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", h.serveReady)
	mux.Handle("GET /metrics", h.metrics.handler())
	document, err := h.openAPI()
	mux.HandleFunc("GET /api/openapi.json", func(w http.ResponseWriter, r *http.Request) {
		if err != nil {
			h.answerError(w, r, err)
			return
		}
		answerJSON(w, http.StatusOK, "application/json", document)
	})
	mux.HandleFunc(h.config.BasePath+"/", func(w http.ResponseWriter, r *http.Request) { h.serveMethod(w, r, auth) })
	return mux
}

func (h *Host) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	switch {
	case !h.Ready():
		answerText(w, http.StatusServiceUnavailable, "starting or stopping")
	case h.config.Store.Ping(ctx) != nil:
		answerText(w, http.StatusServiceUnavailable, "the database does not answer")
	default:
		answerText(w, http.StatusOK, "ready")
	}
}

func (h *Host) serveMethod(w http.ResponseWriter, r *http.Request, auth Authenticator) {
	path := strings.TrimPrefix(r.URL.Path, h.config.BasePath+"/")
	if _, ok := h.methods[path]; ok && r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answerProblem(w, http.StatusMethodNotAllowed, &api.Error{Code: api.CodeUnsupported, Message: "methods are called by POST"})
		return
	}
	// Before every Start has returned nobody is asked who they are: the tables may be missing.
	if !h.Ready() {
		h.answerError(w, r, &api.Error{Code: api.CodeUnavailable, Message: "the controller is starting or stopping", Remedy: "try again in a few seconds"})
		return
	}
	caller, err := auth.Authenticate(r)
	if err != nil {
		h.answerError(w, r, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		answerProblem(w, http.StatusRequestEntityTooLarge, &api.Error{
			Code: api.CodeInvalidInput, Message: fmt.Sprintf("body is larger than %d MiB", maxBody>>20),
		})
		return
	}
	if err != nil {
		h.answerError(w, r, &api.Error{Code: api.CodeInvalidInput, Message: "read body: " + err.Error()})
		return
	}
	out, err := h.Invoke(r.Context(), caller, path, body)
	if err != nil {
		h.answerError(w, r, err)
		return
	}
	text, err := encode(out)
	if err != nil {
		h.answerError(w, r, err)
		return
	}
	answerJSON(w, http.StatusOK, "application/json", text)
}

// answerError answers an [api.Error] as it is, and anything else without its words.
func (h *Host) answerError(w http.ResponseWriter, r *http.Request, err error) {
	var known *api.Error
	if !errors.As(err, &known) {
		h.config.Log.Error("request failed", "path", r.URL.Path, "error", err)
		known = databaseAway
		if !store.Unreachable(err) {
			known = &api.Error{Code: api.CodeInternal, Message: "the controller failed to do this", Remedy: "look in the controller's log"}
		}
	}
	answerProblem(w, statusOf(known.Code), known)
}

func answerProblem(w http.ResponseWriter, status int, e *api.Error) {
	text, err := encode(problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: e.Message, Error: *e})
	if err != nil {
		http.Error(w, e.Message, status)
		return
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	answerJSON(w, status, "application/problem+json", text)
}

func answerJSON(w http.ResponseWriter, status int, mediaType string, text []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

func answerText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}

func statusOf(code string) int {
	switch code {
	case api.CodeInvalidInput:
		return http.StatusBadRequest
	case api.CodeUnauthenticated:
		return http.StatusUnauthorized
	case api.CodeForbidden:
		return http.StatusForbidden
	case api.CodeNotFound:
		return http.StatusNotFound
	case api.CodeConflict:
		return http.StatusConflict
	case api.CodeBlocked, api.CodeInvalidConfig:
		return http.StatusUnprocessableEntity
	case api.CodeUnsupported:
		return http.StatusNotImplemented
	case api.CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
