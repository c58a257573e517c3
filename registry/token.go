package registry

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Actions a token can allow in a repository.
const (
	ActionPull   = "pull"
	ActionPush   = "push"
	ActionDelete = "delete"
)

// Actions a token can allow in the registry as a whole, with [WholeRegistry] as the repository.
const (
	ActionList    = "list"    // the names of all repositories
	ActionCollect = "collect" // free what nothing names
)

// WholeRegistry stands where the pattern of repositories would. No repository has this name.
const WholeRegistry = "_registry"

// ErrToken is what every refusal of a token wraps.
var ErrToken = errors.New("token refused")

// Claims is what a token says of its bearer.
type Claims struct {
	Subject  string   // who it was made for, as "host/n1"; for logs
	Access   []Access // nothing else is allowed
	IssuedAt time.Time
	Expires  time.Time // zero is never
}

// Access allows actions in the repositories that a pattern names. In a pattern a component
// "*" stands for exactly one component; as the last one it stands for one or more.
type Access struct {
	Repository string   `json:"repository"`
	Actions    []string `json:"actions"`
}

type tokenHeader struct {
	Algorithm string `json:"alg"`
	Type      string `json:"typ"`
}

type tokenClaims struct {
	Subject  string   `json:"sub"`
	Access   []Access `json:"access"`
	IssuedAt int64    `json:"iat"`
	Expires  int64    `json:"exp,omitempty"`
}

// maxToken bounds what is parsed before a signature has been checked.
const maxToken = 16 << 10

// SignToken makes a JWT (RFC 7519) signed with EdDSA (RFC 8037).
func SignToken(key ed25519.PrivateKey, claims Claims) string {
	body := tokenClaims{Subject: claims.Subject, Access: claims.Access, IssuedAt: claims.IssuedAt.Unix()}
	if !claims.Expires.IsZero() {
		body.Expires = claims.Expires.Unix()
	}
	signed := encodeSegment(tokenHeader{Algorithm: "EdDSA", Type: "JWT"}) + "." + encodeSegment(body)
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
}

func encodeSegment(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// VerifyToken checks a token made by [SignToken] and gives what it says. The algorithm is
// never taken from the token: a header that says anything but EdDSA is refused.
func VerifyToken(public ed25519.PublicKey, token string, now time.Time) (Claims, error) {
	if len(token) > maxToken {
		return Claims{}, fmt.Errorf("%w: longer than %d bytes", ErrToken, maxToken)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Claims{}, fmt.Errorf("%w: not three parts", ErrToken)
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return Claims{}, fmt.Errorf("%w: signature is not base64url", ErrToken)
	}
	if !ed25519.Verify(public, []byte(parts[0]+"."+parts[1]), signature) {
		return Claims{}, fmt.Errorf("%w: signature does not match", ErrToken)
	}
	var header tokenHeader
	if err := decodeSegment(parts[0], &header); err != nil || header.Algorithm != "EdDSA" || header.Type != "JWT" {
		return Claims{}, fmt.Errorf("%w: header is not that of an EdDSA JWT", ErrToken)
	}
	var body tokenClaims
	if err := decodeSegment(parts[1], &body); err != nil {
		return Claims{}, fmt.Errorf("%w: claims: %w", ErrToken, err)
	}
	claims := Claims{Subject: body.Subject, Access: body.Access, IssuedAt: time.Unix(body.IssuedAt, 0)}
	if body.Expires != 0 {
		claims.Expires = time.Unix(body.Expires, 0)
		if !now.Before(claims.Expires) {
			return Claims{}, fmt.Errorf("%w: expired at %s", ErrToken, claims.Expires.UTC().Format(time.RFC3339))
		}
	}
	return claims, nil
}

func decodeSegment(segment string, into any) error {
	text, err := base64.RawURLEncoding.Strict().DecodeString(segment)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errors.New("trailing data")
	}
	return nil
}

// Allows says whether the claims hold an action in a repository.
func (c Claims) Allows(repository, action string) bool {
	return slices.ContainsFunc(c.Access, func(a Access) bool {
		return slices.Contains(a.Actions, action) && matchRepository(a.Repository, repository)
	})
}

func matchRepository(pattern, repository string) bool {
	want, have := strings.Split(pattern, "/"), strings.Split(repository, "/")
	for i, component := range want {
		if i >= len(have) {
			return false
		}
		if component == "*" {
			if i == len(want)-1 {
				return true
			}
			continue
		}
		if component != have[i] {
			return false
		}
	}
	return len(want) == len(have)
}
