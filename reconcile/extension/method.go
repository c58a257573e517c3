package extension

import (
	"context"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/reconcile/api"
)

// Method is one method with its handler, made by [Handle].
type Method struct {
	Group   string
	Name    string
	Action  string
	Kind    string // api.Query or api.Mutation
	Options Options

	in, out reflect.Type
	decode  func(body []byte) (any, error)
	call    func(ctx context.Context, c *MethodContext, in any) (any, error)
}

// Options of a method.
type Options struct {
	// LongPoll: the handler may wait, so it gets no transaction (MethodContext.Tx is nil).
	LongPoll bool
	// Resource names what the input is about; made by [ResourceOf]. Without it the mesh is.
	Resource func(in any) Resource
	// Validate refuses input before the handler sees it; made by [Valid].
	Validate func(in any) error
}

// Resource is what an action is decided on.
type Resource struct {
	Type string
	ID   string
}

// ResourceOf makes the Resource option of a method whose input is In.
func ResourceOf[In any](f func(In) Resource) func(any) Resource {
	return func(in any) Resource { return f(in.(In)) }
}

// Valid makes the Validate option of a method whose input is In. An error that is no
// [api.Error] is answered as INVALID_INPUT.
func Valid[In any](f func(In) error) func(any) error {
	return func(in any) error { return f(in.(In)) }
}

// MethodContext is the context of one call. Tx is the envelope's transaction: read-only in
// a query, nil in a long poll.
type MethodContext struct {
	*Context
	Tx     pgx.Tx
	Caller Caller
}

// Caller is who calls, as the authenticator found.
type Caller struct {
	Name    string
	Actions []string // patterns; see Allows
}

// Handle makes a method of a call and its handler. A mutation that was rolled back because
// of a deadlock is run again, so a handler keeps its effects to its transaction.
func Handle[In, Out any](call api.Call[In, Out], options Options, handler func(ctx context.Context, c *MethodContext, in In) (Out, error)) Method {
	return Method{
		Group: call.Group, Name: call.Method, Action: call.Action, Kind: call.Kind, Options: options,
		in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		decode: func(body []byte) (any, error) {
			var in In
			err := decode(body, &in)
			return in, err
		},
		call: func(ctx context.Context, c *MethodContext, in any) (any, error) {
			return handler(ctx, c, in.(In))
		},
	}
}
