package clone

import (
	"errors"
	"fmt"

	"github.com/mesh-control/mesh/internal/git"
)

// The reasons of an [Error]. Those of package git come beside these, as they are.
const (
	ReasonLocal          = "LocalRepositoryRefused"
	ReasonAddress        = "AddressRefused"
	ReasonUnreachable    = "RepositoryUnreachable"
	ReasonAuthentication = string(git.AuthenticationFailed)
	ReasonHostKey        = string(git.HostKeyUnknown)
	ReasonRef            = string(git.RefNotFound)
	ReasonEmpty          = string(git.EmptyRepository)
	ReasonTooLarge       = "RepositoryTooLarge"
	ReasonPath           = "PathNotFound"
	ReasonSubmodule      = "SubmoduleRefused"
	ReasonLFS            = "LFSPointer"
)

// renamed are the reasons of git that a build, which may fail for much else, tells apart by
// saying what is meant.
var renamed = map[git.Reason]string{
	git.Unreachable: ReasonUnreachable, git.Invalid: ReasonAddress, git.TooLarge: ReasonTooLarge, git.Unreadable: "RepositoryUnreadable",
}

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

// explain turns what package git returned into an Error.
func explain(err error) error {
	var known *git.Error
	if !errors.As(err, &known) {
		return err
	}
	reason, ok := renamed[known.Reason]
	if !ok {
		reason = string(known.Reason)
	}
	return fail(reason, known.Remedy, "clone %s", known.Message)
}
