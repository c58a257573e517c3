package git

import (
	"regexp"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// found is a ref that was resolved. ask is the hash a server gives it by: an annotated tag's
// own, since a server need not give the commit behind it. A zero ask is a commit that is the
// tip of nothing.
type found struct {
	Head
	ask plumbing.Hash
}

var hash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// candidates are the full names ref may stand for, in the order they are tried.
func candidates(ref string) []string {
	if strings.HasPrefix(ref, "refs/") {
		return []string{ref}
	}
	return []string{"refs/heads/" + ref, "refs/tags/" + ref, "refs/" + ref}
}

func resolve(advertised *packp.AdvRefs, address, ref string) (found, error) {
	if len(advertised.References) == 0 && advertised.Head == nil {
		return found{}, transport.ErrEmptyRemoteRepository
	}
	switch {
	case ref == "", ref == "HEAD":
		return resolveHead(advertised, address)
	case hash.MatchString(ref):
		return resolveCommit(advertised, ref), nil
	}
	for _, name := range candidates(ref) {
		if tip, ok := advertised.References[name]; ok {
			return at(advertised, name, tip), nil
		}
	}
	return found{}, Failure(RefNotFound, "%s has no branch or tag %q", address, ref)
}

// at is a ref at what was advertised for it, a tag at its commit.
func at(advertised *packp.AdvRefs, name string, tip plumbing.Hash) found {
	commit := tip
	if peeled, ok := advertised.Peeled[name]; ok {
		commit = peeled
	}
	return found{Head: Head{Ref: name, Commit: commit.String()}, ask: tip}
}

// resolveCommit finds the ref that stands at a commit, the best of [preferred].
func resolveCommit(advertised *packp.AdvRefs, commit string) found {
	names := make([]string, 0, len(advertised.References))
	for name, tip := range advertised.References {
		if at(advertised, name, tip).Commit == commit {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return found{Head: Head{Commit: commit}}
	}
	name := slices.MinFunc(names, preferred)
	return at(advertised, name, advertised.References[name])
}

// preferred orders the names a commit may go by: main, other branches, then all else.
func preferred(a, b string) int {
	rank := func(name string) string {
		switch {
		case name == "refs/heads/main":
			return "0"
		case name == "refs/heads/master":
			return "1"
		case strings.HasPrefix(name, "refs/heads/"):
			return "2" + name
		case strings.HasPrefix(name, "refs/tags/"):
			return "3" + name
		}
		return "4" + name
	}
	return strings.Compare(rank(a), rank(b))
}

// resolveHead follows the remote's HEAD to the branch it names. A server that does not say
// the name has it found by the commit, as has a HEAD that names no branch.
func resolveHead(advertised *packp.AdvRefs, address string) (found, error) {
	for _, symref := range advertised.Capabilities.Get(capability.SymRef) {
		name, target, _ := strings.Cut(symref, ":")
		if tip, ok := advertised.References[target]; name == "HEAD" && ok {
			return at(advertised, target, tip), nil
		}
	}
	if advertised.Head == nil {
		return found{}, Failure(RefNotFound, "%s: its HEAD names a branch that does not exist; name the branch to follow", address)
	}
	return resolveCommit(advertised, advertised.Head.String()), nil
}
