// Package api is what the controller answers: every method's route, action, input and
// output, as types shared by the server (the extensions) and its clients (the CLI). It
// imports only schema, so that a client links no database driver.
//
// A method is served at POST /api/mesh/{group}/{method}; bodies are JSON both ways, errors
// are problem+json ([Error]). The operator's bearer token authenticates.
package api

// The kinds of method.
const (
	Query    = "query"
	Mutation = "mutation"
)

// Call declares one method. In and Out are its body types.
type Call[In, Out any] struct {
	Group  string
	Method string
	Action string // mesh:<area>:<verb>
	Kind   string // Query or Mutation
}

// None is an input or output without fields.
type None struct{}

// Error is what a method answers when it does not do what was asked (problem+json).
type Error struct {
	Code    string `json:"code"` // INVALID_INPUT, NOT_FOUND, CONFLICT, BLOCKED, UNAUTHENTICATED, FORBIDDEN, UNAVAILABLE, INTERNAL, INVALID_CONFIG, UNSUPPORTED
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Codes of [Error].
const (
	CodeInvalidInput    = "INVALID_INPUT"
	CodeInvalidConfig   = "INVALID_CONFIG"
	CodeNotFound        = "NOT_FOUND"
	CodeConflict        = "CONFLICT"
	CodeBlocked         = "BLOCKED"
	CodeUnauthenticated = "UNAUTHENTICATED"
	CodeForbidden       = "FORBIDDEN"
	CodeUnavailable     = "UNAVAILABLE"
	CodeUnsupported     = "UNSUPPORTED"
	CodeInternal        = "INTERNAL"
)
