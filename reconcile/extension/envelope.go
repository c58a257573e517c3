package extension

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/work"
)

// attempts is how often a mutation is tried that PostgreSQL rolled back for no fault of its
// own.
const attempts = 4

// Invoke calls a method by its route (group/method, or plugins/id/group/method) with a JSON
// body, as caller, and answers what its handler returns. Its errors are [api.Error].
func (h *Host) Invoke(ctx context.Context, caller Caller, path string, body []byte) (any, error) {
	m, ok := h.methods[path]
	if !ok {
		return nil, &api.Error{Code: api.CodeNotFound, Message: "there is no method " + path, Remedy: "see /api/openapi.json"}
	}
	if !h.Ready() {
		return nil, &api.Error{Code: api.CodeUnavailable, Message: "the controller is starting or stopping", Remedy: "try again in a few seconds"}
	}
	started := time.Now()
	out, err := h.invoke(ctx, m, caller, body)
	code := "OK"
	if err != nil {
		refusal := h.refusal(m, caller, err)
		code, err = refusal.Code, refusal
	}
	h.metrics.call(path, code, time.Since(started))
	return out, err
}

func (h *Host) invoke(ctx context.Context, m *route, caller Caller, body []byte) (any, error) {
	in, err := m.decode(body)
	if err != nil {
		return nil, err
	}
	if err := authorise(m, caller, in); err != nil {
		return nil, err
	}
	if m.Options.Validate != nil {
		if err := m.Options.Validate(in); err != nil {
			return nil, invalidInput(err)
		}
	}
	c := &MethodContext{Context: h.context, Caller: caller}
	if m.Options.LongPoll {
		return m.guarded(ctx, c, in)
	}
	transact := work.Transact
	if m.Kind == api.Query {
		transact = work.TransactRead
	}
	var out any
	for try := 1; ; try++ {
		err = transact(ctx, h.config.Store, func(tx pgx.Tx) (err error) {
			c.Tx = tx
			out, err = m.guarded(ctx, c, in)
			return err
		})
		if err == nil || !rolledBack(err) || try == attempts {
			return out, err
		}
	}
}

func authorise(m *route, caller Caller, in any) error {
	if caller.Allows(m.Action) {
		return nil
	}
	on := ""
	if m.Options.Resource != nil {
		r := m.Options.Resource(in)
		on = " on " + r.Type + "/" + r.ID
	}
	return &api.Error{
		Code:    api.CodeForbidden,
		Message: fmt.Sprintf("%s may not %s%s", caller.Name, m.Action, on),
		Remedy:  "ask an operator who may grant it",
	}
}

func invalidInput(err error) error {
	if known := (*api.Error)(nil); errors.As(err, &known) {
		return err
	}
	return &api.Error{Code: api.CodeInvalidInput, Message: err.Error()}
}

// rolledBack says whether PostgreSQL chose the transaction as a victim.
func rolledBack(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// guarded turns a handler's panic into an error with its stack.
func (m *route) guarded(ctx context.Context, c *MethodContext, in any) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return m.call(ctx, c, in)
}

var databaseAway = &api.Error{Code: api.CodeUnavailable, Message: "the database does not answer", Remedy: "try again; if it lasts, look at PostgreSQL"}

// refusal is what the caller is told. Only an [api.Error] is told as it is: other errors may
// hold what callers have no business knowing.
func (h *Host) refusal(m *route, caller Caller, err error) *api.Error {
	if known := (*api.Error)(nil); errors.As(err, &known) {
		return known
	}
	h.config.Log.Error("method failed", "method", m.path, "caller", caller.Name, "error", err)
	if store.Unreachable(err) {
		return databaseAway
	}
	return &api.Error{Code: api.CodeInternal, Message: "the controller failed to do this", Remedy: "look for method " + m.path + " in the controller's log"}
}
