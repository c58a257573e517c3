package source

import (
	"errors"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// openLocal opens the objects and refs of the repository at dir. A storage is opened afresh
// for each read: the list of packs is read once, and a repack would make it stale.
func openLocal(dir string) (*filesystem.Storage, error) {
	gitDirectory, err := GitDirectory(dir)
	if err != nil {
		return nil, err
	}
	return openDirectory(gitDirectory), nil
}

func openDirectory(dir string) *filesystem.Storage {
	return filesystem.NewStorageWithOptions(
		osfs.New(dir, osfs.WithBoundOS()),
		cache.NewObjectLRU(8*cache.MiByte),
		filesystem.Options{LargeObjectThreshold: 1 << 20, AlternatesFS: osfs.New("/", osfs.WithBoundOS())},
	)
}

func localHead(repository *filesystem.Storage, address, ref string) (Head, error) {
	name, err := localName(repository, address, ref)
	if err != nil {
		return Head{}, err
	}
	reference, err := storer.ResolveReference(repository, name)
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return Head{}, missing(repository, address, ref)
	}
	if err != nil {
		return Head{}, failure(Unreadable, "%s: read ref %s: %v", Redact(address), name, err)
	}
	commit := reference.Hash()
	if tag, err := object.GetTag(repository, commit); err == nil {
		target, err := tag.Commit()
		if err != nil {
			return Head{}, failure(Unreadable, "%s: tag %s: %v", Redact(address), name, errNoCommit)
		}
		commit = target.Hash
	}
	return Head{Ref: name.String(), Commit: commit.String()}, nil
}

// localName is the full name ref stands for; "" is the branch HEAD names.
func localName(repository *filesystem.Storage, address, ref string) (plumbing.ReferenceName, error) {
	if ref != "" {
		for _, name := range candidates(ref) {
			if _, err := repository.Reference(plumbing.ReferenceName(name)); err == nil {
				return plumbing.ReferenceName(name), nil
			}
		}
		return "", missing(repository, address, ref)
	}
	head, err := repository.Reference(plumbing.HEAD)
	if err != nil {
		return "", failure(Unreadable, "%s: read HEAD: %v", Redact(address), err)
	}
	if head.Type() == plumbing.SymbolicReference {
		return head.Target(), nil
	}
	return plumbing.HEAD, nil
}

// missing tells a repository nothing was ever pushed to from one without this ref.
func missing(repository *filesystem.Storage, address, ref string) error {
	refs, err := repository.IterReferences()
	if err != nil {
		return failure(Unreadable, "%s: list refs: %v", Redact(address), err)
	}
	defer refs.Close()
	empty := true
	err = refs.ForEach(func(r *plumbing.Reference) error {
		if r.Type() == plumbing.HashReference && strings.HasPrefix(r.Name().String(), "refs/") {
			empty = false
			return storer.ErrStop
		}
		return nil
	})
	switch {
	case err != nil:
		return failure(Unreadable, "%s: list refs: %v", Redact(address), err)
	case empty:
		return failure(EmptyRepository, "%s has no commit yet", Redact(address))
	case ref == "":
		return failure(RefNotFound, "%s: its HEAD names a branch that does not exist; name the branch to follow", Redact(address))
	}
	return failure(RefNotFound, "%s has no branch or tag %q", Redact(address), ref)
}
