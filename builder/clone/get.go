package clone

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// DefaultLimit is how many bytes of objects are fetched at most when [Request] says nothing.
const DefaultLimit = 4 << 30

// Request says what to bring. Repository is what the job names; From, when set, is the
// local directory to read it from instead and needs AllowLocal. Directory is the build's
// own and must exist.
type Request struct {
	Repository string
	From       string
	Ref        string // "" is the remote's HEAD; a short name, a full one, or 40 hex
	Directory  string
	User       string
	Password   string
	AllowLocal bool
	Limit      int64
}

// Clone is one commit, with its objects.
type Clone struct {
	Ref    string // full name
	Commit string
	root   *object.Tree
	store  *git.Repository
}

var hash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Get brings the commit the ref stands for now.
func Get(ctx context.Context, req Request) (*Clone, error) {
	if req.Limit == 0 {
		req.Limit = DefaultLimit
	}
	from := req.Repository
	if req.From != "" {
		from = req.From
	}
	if dir, local := localPath(from); local {
		if !req.AllowLocal {
			return nil, fail(ReasonLocal, "give the repository's URL (https:// or ssh://), or start mesh-builder by hand to build a directory",
				"repository %s is a path on this machine, and this builder does not see its node's files", from)
		}
		c, err := open(dir, req.Ref)
		if err != nil {
			return nil, explain(req.Repository, err)
		}
		return c, nil
	}
	if err := checkScheme(from); err != nil {
		return nil, err
	}
	// The ref may move between resolving and fetching; then both are done again.
	for range 3 {
		c, err := remote(ctx, req, from)
		var e *Error
		if errors.As(err, &e) && e.Reason == ReasonMoved && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, explain(req.Repository, err)
		}
		return c, nil
	}
	return nil, fail(ReasonMoved, "build again", "clone %s: %s moves faster than it can be fetched", Redact(req.Repository), req.Ref)
}

// localPath says whether a repository is a directory of this machine.
func localPath(repository string) (string, bool) {
	if dir, ok := strings.CutPrefix(repository, "file://"); ok {
		return dir, true
	}
	if strings.Contains(repository, "://") {
		return "", false
	}
	// git@host:path is ssh; anything else without a scheme is a path.
	if host, _, ok := strings.Cut(repository, ":"); ok && !strings.Contains(host, "/") {
		return "", false
	}
	return repository, true
}

func checkScheme(repository string) error {
	if !strings.Contains(repository, "://") {
		return nil
	}
	u, err := url.Parse(repository)
	if err != nil {
		return fail(ReasonScheme, "", "repository is not a URL")
	}
	switch u.Scheme {
	case "https", "http", "ssh":
		return nil
	}
	return fail(ReasonScheme, "use https:// or ssh://", "repository scheme %q is not one the mesh speaks", u.Scheme)
}

func open(dir, ref string) (*Clone, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fail(ReasonUnreachable, "", "open %s: no such directory", dir)
	}
	repo, err := git.PlainOpenWithOptions(dir, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	if err != nil {
		return nil, fail(ReasonUnreachable, "run git init and commit, a build is made from a commit", "open %s: %w", dir, err)
	}
	iter, err := repo.References()
	if err != nil {
		return nil, err
	}
	var refs []*plumbing.Reference
	if err := iter.ForEach(func(r *plumbing.Reference) error { refs = append(refs, r); return nil }); err != nil {
		return nil, err
	}
	if head, err := repo.Reference(plumbing.HEAD, false); err == nil {
		refs = append(refs, head)
	}
	name, commit, err := resolve(refs, ref)
	if err == nil && name == "" {
		name, err = holding(repo, refs, commit)
	}
	if err != nil {
		return nil, err
	}
	return at(repo, name, commit)
}

func remote(ctx context.Context, req Request, from string) (*Clone, error) {
	auth := req.auth()
	repo, err := req.store()
	if err != nil {
		return nil, err
	}
	rem, err := repo.CreateRemote(&config.RemoteConfig{Name: "origin", URLs: []string{from}})
	if err != nil {
		return nil, err
	}
	refs, err := rem.ListContext(ctx, &git.ListOptions{Auth: auth})
	if err != nil {
		return nil, err
	}
	name, commit, err := resolve(refs, req.Ref)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return onBranch(ctx, rem, repo, refs, commit, auth)
	}
	spec := config.RefSpec(fmt.Sprintf("+%s:refs/mesh/wanted", name))
	if err := rem.FetchContext(ctx, &git.FetchOptions{RefSpecs: []config.RefSpec{spec}, Depth: 1, Auth: auth, Tags: git.NoTags}); err != nil {
		return nil, err
	}
	got, err := repo.Reference("refs/mesh/wanted", true)
	if err != nil {
		return nil, err
	}
	if peel(repo, got.Hash()) != peel(repo, commit) {
		return nil, fail(ReasonMoved, "", "ref moved")
	}
	return at(repo, name, commit)
}

// onBranch brings a commit that is the tip of nothing. A default server refuses to send a
// bare commit, so all branches are fetched in full, and the first that holds it names the ref.
func onBranch(ctx context.Context, rem *git.Remote, repo *git.Repository, refs []*plumbing.Reference, commit plumbing.Hash, auth transport.AuthMethod) (*Clone, error) {
	err := rem.FetchContext(ctx, &git.FetchOptions{RefSpecs: []config.RefSpec{"+refs/heads/*:refs/mesh/heads/*"}, Auth: auth, Tags: git.NoTags})
	if err != nil {
		return nil, err
	}
	name, err := holding(repo, refs, commit)
	if err != nil {
		return nil, err
	}
	return at(repo, name, commit)
}

// holding names the branch that has a commit in its history, main before the others.
func holding(repo *git.Repository, refs []*plumbing.Reference, commit plumbing.Hash) (string, error) {
	wanted, err := repo.CommitObject(commit)
	if err != nil {
		return "", noBranch(commit)
	}
	branches := slices.DeleteFunc(slices.Clone(refs), func(r *plumbing.Reference) bool { return !r.Name().IsBranch() })
	slices.SortFunc(branches, func(a, b *plumbing.Reference) int {
		if a.Name() == "refs/heads/main" || b.Name() == "refs/heads/main" {
			return strings.Compare(fmt.Sprint(a.Name() != "refs/heads/main"), fmt.Sprint(b.Name() != "refs/heads/main"))
		}
		return strings.Compare(string(a.Name()), string(b.Name()))
	})
	for _, branch := range branches {
		tip, err := repo.CommitObject(branch.Hash())
		if err != nil {
			continue
		}
		if in, err := wanted.IsAncestor(tip); err == nil && in {
			return string(branch.Name()), nil
		}
	}
	return "", noBranch(commit)
}

func noBranch(commit plumbing.Hash) error {
	return fail(ReasonRef, "build a branch or a tag", "commit %s is in no branch of the repository", commit)
}

func (req Request) auth() transport.AuthMethod {
	if req.Password == "" {
		return nil
	}
	user := req.User
	if user == "" {
		user = "git"
	}
	return &http.BasicAuth{Username: user, Password: req.Password}
}

// store makes the bare object store in the build's directory.
func (req Request) store() (*git.Repository, error) {
	dir := filepath.Join(req.Directory, "git")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	fs := &limited{Filesystem: osfs.New(dir, osfs.WithBoundOS()), left: req.Limit}
	return git.Init(filesystem.NewStorage(fs, cache.NewObjectLRU(16*cache.MiByte)), nil)
}

// resolve finds the full name and the hash a ref stands for. A commit that is the tip of
// nothing has no name.
func resolve(refs []*plumbing.Reference, ref string) (string, plumbing.Hash, error) {
	byName := map[plumbing.ReferenceName]*plumbing.Reference{}
	for _, r := range refs {
		byName[r.Name()] = r
	}
	if hash.MatchString(ref) {
		for _, r := range refs {
			if r.Type() == plumbing.HashReference && r.Hash().String() == ref && r.Name() != plumbing.HEAD {
				return string(r.Name()), r.Hash(), nil
			}
		}
		return "", plumbing.NewHash(ref), nil
	}
	candidates := []string{ref, "refs/heads/" + ref, "refs/tags/" + ref}
	if ref == "" || ref == "HEAD" {
		candidates = []string{"HEAD"}
	}
	for _, candidate := range candidates {
		r, ok := byName[plumbing.ReferenceName(candidate)]
		for range 5 {
			if !ok || r.Type() != plumbing.SymbolicReference {
				break
			}
			r, ok = byName[r.Target()]
		}
		if !ok {
			continue
		}
		name := r.Name()
		if name == plumbing.HEAD {
			if name = branchAt(refs, r.Hash()); name == plumbing.HEAD {
				return "", r.Hash(), nil
			}
		}
		return string(name), r.Hash(), nil
	}
	if len(refs) == 0 || (len(refs) == 1 && refs[0].Type() == plumbing.SymbolicReference) {
		return "", plumbing.ZeroHash, fail(ReasonEmpty, "commit something to it", "repository has no commit")
	}
	if ref == "" {
		ref = "HEAD"
	}
	return "", plumbing.ZeroHash, fail(ReasonRef, "see git ls-remote for the names there are", "repository has no ref %q", ref)
}

// branchAt names the branch a detached or unnamed HEAD stands on, or HEAD itself.
func branchAt(refs []*plumbing.Reference, at plumbing.Hash) plumbing.ReferenceName {
	best := plumbing.HEAD
	for _, r := range refs {
		if r.Name().IsBranch() && r.Hash() == at && (best == plumbing.HEAD || r.Name() == "refs/heads/main") {
			best = r.Name()
		}
	}
	return best
}

// peel follows an annotated tag to its commit.
func peel(repo *git.Repository, at plumbing.Hash) plumbing.Hash {
	if tag, err := repo.TagObject(at); err == nil {
		if c, err := tag.Commit(); err == nil {
			return c.Hash
		}
	}
	return at
}

func at(repo *git.Repository, name string, commit plumbing.Hash) (*Clone, error) {
	commit = peel(repo, commit)
	c, err := repo.CommitObject(commit)
	if err != nil {
		return nil, noBranch(commit)
	}
	root, err := c.Tree()
	if err != nil {
		return nil, err
	}
	return &Clone{Ref: name, Commit: commit.String(), root: root, store: repo}, nil
}

// Close lets go of the object store's files. The directory is the caller's to remove.
func (c *Clone) Close() error {
	if s, ok := c.store.Storer.(*filesystem.Storage); ok {
		return s.Close()
	}
	return nil
}
