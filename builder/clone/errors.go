package clone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// The reasons of an [Error].
const (
	ReasonLocal          = "LocalRepositoryRefused"
	ReasonScheme         = "SchemeRefused"
	ReasonUnreachable    = "RepositoryUnreachable"
	ReasonAuthentication = "AuthenticationFailed"
	ReasonHostKey        = "HostKeyUnknown"
	ReasonRef            = "RefNotFound"
	ReasonEmpty          = "EmptyRepository"
	ReasonMoved          = "RefMoved"
	ReasonTooLarge       = "RepositoryTooLarge"
	ReasonPath           = "PathNotFound"
	ReasonSubmodule      = "SubmoduleRefused"
	ReasonLFS            = "LFSPointer"
)

// Error says why a repository, or something in it, cannot be had.
type Error struct {
	Reason string
	Remedy string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func fail(reason, remedy, format string, args ...any) error {
	return &Error{Reason: reason, Remedy: remedy, Err: fmt.Errorf(format, args...)}
}

// maxServerText is how much of what a server said enters an error.
const maxServerText = 512

// explain turns what go-git returned into an Error.
func explain(repository string, err error) error {
	var mine *Error
	if errors.As(err, &mine) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	text := err.Error()
	if len(text) > maxServerText {
		text = text[:maxServerText] + "…"
	}
	repository = Redact(repository)
	said := errors.New(Redact(text))
	var netErr net.Error
	switch {
	case errors.Is(err, errLimit):
		return fail(ReasonTooLarge, "raise the builder's limit or split the repository", "clone %s: %w", repository, errLimit)
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed), errors.Is(err, transport.ErrInvalidAuthMethod):
		return fail(ReasonAuthentication, "give the mesh a credential for this repository, or renew it", "clone %s: %w", repository, said)
	case strings.Contains(text, "knownhosts") || strings.Contains(text, "host key"):
		return fail(ReasonHostKey, "pin the host's key with the repository's credential", "clone %s: %w", repository, said)
	case errors.Is(err, transport.ErrEmptyRemoteRepository), errors.Is(err, git.NoErrAlreadyUpToDate):
		return fail(ReasonEmpty, "commit something to it", "clone %s: repository is empty", repository)
	case errors.Is(err, plumbing.ErrReferenceNotFound), errors.Is(err, git.NoMatchingRefSpecError{}):
		return fail(ReasonRef, "", "clone %s: %w", repository, said)
	case errors.As(err, &netErr):
		return fail(ReasonUnreachable, "see that the repository's address can be reached from the builder", "clone %s: %w", repository, said)
	}
	return fail(ReasonUnreachable, "see that the repository exists and can be reached from the builder", "clone %s: %w", repository, said)
}

var userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/@\s"]+@`)

// Redact cuts user names and passwords out of every URL in a text: a token may stand as
// either.
func Redact(text string) string { return userinfo.ReplaceAllString(text, "$1") }
