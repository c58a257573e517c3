package extension

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/store"
	"github.com/mesh-control/mesh/reconcile/api"
)

// Authenticator finds out who sends a request.
type Authenticator interface {
	// Authenticate answers an UNAUTHENTICATED [api.Error] where nobody known sends it.
	Authenticate(r *http.Request) (Caller, error)
}

// Operators authenticates bearer tokens against mesh.operators.
type Operators struct {
	Store *store.Pool
}

// Authenticate looks the token's SHA-256 up, so that a reader of the table learns no token.
func (o Operators) Authenticate(r *http.Request) (Caller, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Caller{}, unauthenticated("no bearer token was sent")
	}
	var caller Caller
	sum := sha256.Sum256([]byte(token))
	err := o.Store.QueryRow(r.Context(), `SELECT name, actions FROM mesh.operators WHERE token_sha256 = $1`, sum[:]).
		Scan(&caller.Name, &caller.Actions)
	if errors.Is(err, pgx.ErrNoRows) {
		return Caller{}, unauthenticated("the token is not known")
	}
	if err != nil {
		return Caller{}, fmt.Errorf("authenticate: %w", err)
	}
	return caller, nil
}

func unauthenticated(message string) error {
	return &api.Error{Code: api.CodeUnauthenticated, Message: message, Remedy: "use the token of your operator context"}
}

// PutOperator records an operator who may do everything, or gives one another token.
func PutOperator(ctx context.Context, tx pgx.Tx, name, token string) error {
	sum := sha256.Sum256([]byte(token))
	_, err := tx.Exec(ctx, `
INSERT INTO mesh.operators (name, token_sha256) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET token_sha256 = EXCLUDED.token_sha256`, name, sum[:])
	if err != nil {
		return fmt.Errorf("put operator %s: %w", name, err)
	}
	return nil
}

// Allows says whether one of the caller's patterns covers the action. A pattern's segments
// are literal or *.
func (c Caller) Allows(action string) bool {
	for _, pattern := range c.Actions {
		if matches(pattern, action) {
			return true
		}
	}
	return false
}

func matches(pattern, action string) bool {
	want, have := strings.Split(pattern, ":"), strings.Split(action, ":")
	if len(want) != len(have) {
		return false
	}
	for i, segment := range want {
		if segment != "*" && segment != have[i] {
			return false
		}
	}
	return true
}
