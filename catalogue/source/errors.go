package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// Reason classifies why a repository could not be read. It is stored, shown and stable.
type Reason string

// The reasons a repository cannot be read.
const (
	Unreachable          Reason = "Unreachable"          // no answer, or not one of git's
	AuthenticationFailed Reason = "AuthenticationFailed" // asked for credentials, or refused those given
	RepositoryNotFound   Reason = "RepositoryNotFound"   // the server answers and knows no such repository
	RefNotFound          Reason = "RefNotFound"          // the repository has commits, not this ref
	EmptyRepository      Reason = "EmptyRepository"      // nothing was ever pushed
	HostKeyUnknown       Reason = "HostKeyUnknown"       // ssh: the server's key is not the one pinned
	TooLarge             Reason = "TooLarge"             // above a cap of this package
	Invalid              Reason = "Invalid"              // an address this package does not accept
	Unreadable           Reason = "Unreadable"           // objects missing or damaged
)

// Error is a classified failure. Message holds no credential and is at most 400 bytes.
type Error struct {
	Reason  Reason
	Message string
}

// Error implements error.
func (e *Error) Error() string { return string(e.Reason) + ": " + e.Message }

// ReasonOf is the reason of err, or "" when err is nil or not of this package.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

const messageBytes = 400

func failure(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: printable(fmt.Sprintf(format, args...))}
}

// classify turns any failure of reaching or reading address into an [*Error]. Cancellation
// of ctx itself is handed back as it is: it is the asker's doing, not the repository's.
func classify(ctx context.Context, address string, auth *Auth, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	message := auth.redact(err.Error())
	shown := Redact(address)
	var keyError *knownhosts.KeyError
	switch {
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return failure(EmptyRepository, "%s has no commit yet", shown)
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return failure(RepositoryNotFound, "%s: the server knows no such repository", shown)
	case errors.As(err, &keyError), strings.Contains(message, errHostKey.Error()):
		return failure(HostKeyUnknown, "%s: %s", shown, message)
	case isAuthentication(err):
		return failure(AuthenticationFailed, "%s: %s", shown, message)
	case errors.Is(err, plumbing.ErrObjectNotFound):
		return failure(Unreadable, "%s: %s", shown, message)
	case errors.Is(err, fs.ErrPermission):
		return failure(Unreachable, "%s: %s", shown, message)
	case errors.Is(err, context.DeadlineExceeded):
		return failure(Unreachable, "%s: no answer in time", shown)
	}
	return failure(Unreachable, "%s: %s", shown, message)
}

func isAuthentication(err error) bool {
	var passphrase *ssh.PassphraseMissingError
	return errors.Is(err, transport.ErrAuthenticationRequired) ||
		errors.Is(err, transport.ErrAuthorizationFailed) ||
		errors.Is(err, transport.ErrInvalidAuthMethod) ||
		errors.As(err, &passphrase) ||
		strings.Contains(err.Error(), "unable to authenticate")
}

// Redact is an address as it may be shown: without user name and password.
func Redact(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return printable(address)
	}
	u.User = nil
	return printable(u.String())
}

func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > messageBytes {
		s = strings.ToValidUTF8(s[:messageBytes], "") + "…"
	}
	return s
}
