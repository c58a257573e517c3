package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"

	"github.com/mesh-control/mesh/internal/giturl"
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
	HostKeyUnknown       Reason = "HostKeyUnknown"       // ssh: the server's key is not one of those pinned
	TooLarge             Reason = "TooLarge"             // above a cap of this package
	Invalid              Reason = "Invalid"              // an address this package does not accept
	Unreadable           Reason = "Unreadable"           // objects missing or damaged
)

// remedies are what to do, where the reason alone says it.
var remedies = map[Reason]string{
	Unreachable:          "see that the repository's address can be reached from here",
	AuthenticationFailed: "give the repository a credential, or renew the one it has",
	RepositoryNotFound:   "see that the address is right; some servers say this of a private repository without a credential",
	RefNotFound:          "see git ls-remote for the names there are",
	EmptyRepository:      "push a commit to it",
	HostKeyUnknown:       "pin the server's key with the repository's credential; ssh-keyscan shows it",
	TooLarge:             "raise the limit or split the repository",
}

// Error is a classified failure. Message holds no credential and is at most 400 bytes.
type Error struct {
	Reason  Reason
	Message string
	Remedy  string // "" when there is none to name
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

// Failure makes an error of a reason, with the remedy that goes with it.
func Failure(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: printable(giturl.Redact(fmt.Sprintf(format, args...))), Remedy: remedies[reason]}
}

// Classify turns any failure of reaching or reading address into an [*Error], without what
// of the credential may stand in it. Cancellation of ctx itself is handed back as it is: it is
// the asker's doing, not the repository's.
func Classify(ctx context.Context, address string, credential *Credential, err error) error {
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
	message := redact(credential, err.Error())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Failure(Unreachable, "%s: no answer in time", address)
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return Failure(EmptyRepository, "%s has no commit yet", address)
	case errors.Is(err, transport.ErrRepositoryNotFound), errors.Is(err, errServerNotFound):
		return Failure(RepositoryNotFound, "%s: the server knows no such repository", address)
	case errors.Is(err, errHostKey), strings.Contains(message, errHostKey.Error()), strings.Contains(message, "no common algorithm for host key"):
		return Failure(HostKeyUnknown, "%s: %s", address, errHostKey)
	case isAuthentication(err):
		return Failure(AuthenticationFailed, "%s: %s", address, message)
	case errors.Is(err, plumbing.ErrObjectNotFound):
		return Failure(Unreadable, "%s: %s", address, message)
	case errors.Is(err, fs.ErrPermission):
		return Failure(Unreachable, "%s: %s", address, message)
	}
	return Failure(Unreachable, "%s: %s", address, message)
}

func isAuthentication(err error) bool {
	var passphrase *ssh.PassphraseMissingError
	return errors.Is(err, transport.ErrAuthenticationRequired) ||
		errors.Is(err, transport.ErrAuthorizationFailed) ||
		errors.Is(err, transport.ErrInvalidAuthMethod) ||
		errors.As(err, &passphrase) ||
		strings.Contains(err.Error(), "unable to authenticate")
}

// printable is text of a remote, or of a person, as one line that is safe to show.
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
