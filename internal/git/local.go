package git

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/go-git/go-git/v5/storage/filesystem/dotgit"
)

// Directory is where the HEAD of the repository at dir lies: dir itself when it is bare, its
// .git otherwise, and what that names when it is a file, as in a linked work tree.
func Directory(dir string) (string, error) {
	for _, candidate := range []string{dir, filepath.Join(dir, ".git"), linked(dir)} {
		if candidate == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(candidate, "HEAD")); err != nil {
			continue
		}
		if info, err := os.Stat(filepath.Join(CommonDirectory(candidate), "objects")); err == nil && info.IsDir() {
			return candidate, nil
		}
	}
	if _, err := os.Stat(dir); err != nil {
		return "", Failure(Unreachable, "%s: %v", dir, errors.Unwrap(err))
	}
	return "", Failure(RepositoryNotFound, "%s is not a git repository", dir)
}

// CommonDirectory is where the objects and branches of a git directory lie: another one when
// it is that of a linked work tree.
func CommonDirectory(gitDirectory string) string {
	return pointed(gitDirectory, filepath.Join(gitDirectory, "commondir"), "", gitDirectory)
}

func linked(dir string) string {
	return pointed(dir, filepath.Join(dir, ".git"), "gitdir:", "")
}

// pointed is the directory that a file names, relative to dir; none when there is no such file.
func pointed(dir, file, prefix, none string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return none
	}
	target, ok := strings.CutPrefix(strings.TrimSpace(string(data)), prefix)
	if !ok {
		return none
	}
	if target = strings.TrimSpace(target); !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	return target
}

// openLocal opens the objects and refs of the repository at dir. A storage is opened afresh
// for each read: the list of packs is read once, and a repack would make it stale.
func openLocal(dir string) (*filesystem.Storage, error) {
	gitDirectory, err := Directory(dir)
	if err != nil {
		return nil, err
	}
	return openDirectory(gitDirectory), nil
}

func openDirectory(dir string) *filesystem.Storage {
	files := osfs.New(dir, osfs.WithBoundOS())
	if common := CommonDirectory(dir); common != dir {
		files = dotgit.NewRepositoryFilesystem(files, osfs.New(common, osfs.WithBoundOS()))
	}
	return filesystem.NewStorageWithOptions(files, cache.NewObjectLRU(8*cache.MiByte),
		filesystem.Options{LargeObjectThreshold: 1 << 20, AlternatesFS: osfs.New("/", osfs.WithBoundOS())})
}

func fetchLocal(dir, address, ref string) (*Commit, error) {
	repository, err := openLocal(dir)
	if err != nil {
		return nil, err
	}
	wanted, err := localRef(repository, address, ref)
	if err != nil {
		return nil, errors.Join(err, repository.Close())
	}
	tips, err := localTips(repository, address)
	if err != nil {
		return nil, errors.Join(err, repository.Close())
	}
	return open(address, wanted, tips, repository, repository.Close)
}

// localRef finds where ref stands in a repository on this machine, by the rules of [resolve].
func localRef(repository *filesystem.Storage, address, ref string) (found, error) {
	if hash.MatchString(ref) {
		return localCommit(repository, address, ref)
	}
	name, err := localName(repository, address, ref)
	if err != nil {
		return found{}, err
	}
	reference, err := storer.ResolveReference(repository, name)
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return found{}, missing(repository, address, ref)
	}
	if err != nil {
		return found{}, Failure(Unreadable, "%s: read ref %s: %v", address, name, err)
	}
	if name == plumbing.HEAD {
		return localCommit(repository, address, reference.Hash().String())
	}
	return found{Head: Head{Ref: name.String(), Commit: peel(repository, reference.Hash()).String()}, ask: reference.Hash()}, nil
}

// peel follows annotated tags to what they name in the end.
func peel(repository storer.EncodedObjectStorer, at plumbing.Hash) plumbing.Hash {
	for {
		tag, err := object.GetTag(repository, at)
		if err != nil {
			return at
		}
		at = tag.Target
	}
}

// localCommit names the ref that stands at a commit, or leaves that to [holding].
func localCommit(repository *filesystem.Storage, address, commit string) (found, error) {
	tips, err := localTips(repository, address)
	if err != nil {
		return found{}, err
	}
	best := found{Head: Head{Commit: commit}}
	for name, tip := range tips {
		if tip.String() == commit && (best.Ref == "" || preferred(name, best.Ref) < 0) {
			best = found{Head: Head{Ref: name, Commit: commit}, ask: tip}
		}
	}
	if repository.HasEncodedObject(plumbing.NewHash(commit)) != nil {
		return found{}, nowhere(address, commit)
	}
	return best, nil
}

// localName is the full name ref stands for; "" is the branch HEAD names.
func localName(repository *filesystem.Storage, address, ref string) (plumbing.ReferenceName, error) {
	if ref != "" && ref != plumbing.HEAD.String() {
		for _, name := range candidates(ref) {
			if _, err := repository.Reference(plumbing.ReferenceName(name)); err == nil {
				return plumbing.ReferenceName(name), nil
			}
		}
		return "", missing(repository, address, ref)
	}
	head, err := repository.Reference(plumbing.HEAD)
	if err != nil {
		return "", Failure(Unreadable, "%s: read HEAD: %v", address, err)
	}
	if head.Type() == plumbing.SymbolicReference {
		return head.Target(), nil
	}
	return plumbing.HEAD, nil
}

// missing tells a repository nothing was ever pushed to from one without this ref.
func missing(repository *filesystem.Storage, address, ref string) error {
	refs, err := localRefs(repository, address)
	switch {
	case err != nil:
		return err
	case len(refs) == 0:
		return Failure(EmptyRepository, "%s has no commit yet", address)
	case ref == "":
		return Failure(RefNotFound, "%s: its HEAD names a branch that does not exist; name the branch to follow", address)
	}
	return Failure(RefNotFound, "%s has no branch or tag %q", address, ref)
}

// localTips are the commits of all branches and tags.
func localTips(repository *filesystem.Storage, address string) (map[string]plumbing.Hash, error) {
	refs, err := localRefs(repository, address)
	for name, tip := range refs {
		if !isTip(name) {
			delete(refs, name)
			continue
		}
		refs[name] = peel(repository, tip)
	}
	return refs, err
}

// localRefs are all refs below refs/ that have a hash of their own.
func localRefs(repository *filesystem.Storage, address string) (map[string]plumbing.Hash, error) {
	all, err := repository.IterReferences()
	if err != nil {
		return nil, Failure(Unreadable, "%s: list refs: %v", address, err)
	}
	defer all.Close()
	refs := map[string]plumbing.Hash{}
	err = all.ForEach(func(r *plumbing.Reference) error {
		if name := r.Name().String(); r.Type() == plumbing.HashReference && strings.HasPrefix(name, "refs/") {
			refs[name] = r.Hash()
		}
		return nil
	})
	if err != nil {
		return nil, Failure(Unreadable, "%s: list refs: %v", address, err)
	}
	return refs, nil
}
