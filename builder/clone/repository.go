package clone

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/giturl"
)

// The limits of submodules, which may have some themselves.
const (
	maxSubmodules = 100
	maxNesting    = 8
)

// modulesFile names the repositories of a repository's submodules.
const modulesFile = ".gitmodules"

// repository is one commit of one repository: the one asked for, or that of a submodule.
type repository struct {
	address    string // it was read from
	at         string // where it stands in the whole, "" for the one asked for
	nesting    int
	commit     *git.Commit
	root       *object.Tree
	submodules map[string]string // addresses by path, as .gitmodules has them; nil until read
}

// Submodule is one that something was read of.
type Submodule struct {
	Path       string // where it stands in the repository
	Repository string // address, without what is secret in it
	Commit     string
}

// Submodules lists those that something was read of, by path.
func (c *Clone) Submodules() []Submodule {
	read := make([]Submodule, 0, len(c.inside))
	for _, at := range slices.Sorted(maps.Keys(c.inside)) {
		r := c.inside[at]
		read = append(read, Submodule{Path: at, Repository: giturl.Redact(r.address), Commit: r.commit.Commit})
	}
	return read
}

func newRepository(address, at string, commit *git.Commit) (*repository, error) {
	root, err := object.GetTree(commit.Objects, commit.Tree)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read tree of commit %s: %w", commit.Commit, err), commit.Close())
	}
	return &repository{address: address, at: at, commit: commit, root: root}, nil
}

// tree reads the tree of a hash; it is that of the directory at a path of the whole.
func (r *repository) tree(hash plumbing.Hash, at string) (*object.Tree, error) {
	tree, err := object.GetTree(r.commit.Objects, hash)
	if err != nil {
		return nil, fmt.Errorf("read directory %s: %w", at, err)
	}
	return tree, nil
}

// addressOf is where the submodule at a path of the whole comes from, as .gitmodules has it.
func (r *repository) addressOf(at string) (string, error) {
	if r.submodules == nil {
		if err := r.readModules(); err != nil {
			return "", err
		}
	}
	address := r.submodules[strings.TrimPrefix(strings.TrimPrefix(at, r.at), "/")]
	if address == "" {
		return "", fail(ReasonSubmodule, "commit "+modulesFile+" with it, or the files themselves", "%s is a submodule that %s does not name", at, path.Join(r.at, modulesFile))
	}
	return address, nil
}

func (r *repository) readModules() error {
	r.submodules = map[string]string{}
	entry, err := r.root.FindEntry(modulesFile)
	if err != nil || entry.Mode == filemode.Symlink || entry.Mode == filemode.Dir {
		return nil //nolint:nilerr // without the file no submodule has an address
	}
	data, err := readFile(r, entry.Hash, path.Join(r.at, modulesFile))
	if err != nil {
		return err
	}
	modules := config.NewModules()
	if err := modules.Unmarshal(data); err != nil {
		return fail(ReasonSubmodule, "see git config --file "+modulesFile+" --list", "%s: %w", path.Join(r.at, modulesFile), err)
	}
	for _, m := range modules.Submodules {
		r.submodules[path.Clean(m.Path)] = m.URL
	}
	return nil
}

// submodule fetches what a gitlink names, once. The commit is the one recorded, whatever its
// branch has become.
func (c *Clone) submodule(parent *repository, at string, link object.TreeEntry) (*repository, error) {
	if known := c.inside[at]; known != nil {
		return known, nil
	}
	if parent.nesting == maxNesting || len(c.inside) == maxSubmodules {
		return nil, fail(ReasonSubmodule, "commit the files themselves", "%s: there are more than %d submodules, or some lie more than %d deep in others", at, maxSubmodules, maxNesting)
	}
	written, err := parent.addressOf(at)
	if err != nil {
		return nil, err
	}
	address, credential, err := c.permitted(parent, at, written)
	if err != nil {
		return nil, err
	}
	commit, err := c.fetch(func(client *git.Client) (*git.Commit, error) {
		return client.FetchCommit(c.ctx, address, link.Hash.String(), credential)
	})
	if err != nil {
		return nil, fmt.Errorf("submodule %s: %w", at, err)
	}
	inside, err := newRepository(address, at, commit)
	if err != nil {
		return nil, fmt.Errorf("submodule %s: %w", at, err)
	}
	inside.nesting = parent.nesting + 1
	c.inside[at] = inside
	return inside, nil
}

// permitted is the address of a submodule, if its parent may name it, and the credential that
// goes there: the job's own, to the server it was given for and to no other.
func (c *Clone) permitted(parent *repository, at, written string) (string, *git.Credential, error) {
	above, err := giturl.Parse(parent.address)
	if err != nil {
		return "", nil, fail(ReasonSubmodule, "", "submodule %s: its parent's address: %w", at, err)
	}
	address, err := above.Resolve(written)
	if err != nil {
		return "", nil, fail(ReasonSubmodule, "give it an address the mesh speaks", "submodule %s: %w", at, err)
	}
	if _, local := address.Local(); local && above.Scheme != giturl.File {
		return "", nil, fail(ReasonSubmodule, "give it the address of a server",
			"submodule %s is a path on the builder's machine; a repository of another machine may not name one", at)
	}
	top, err := giturl.Parse(c.top.address)
	if err != nil || !top.SameServer(address) {
		return address.String(), nil, nil //nolint:nilerr // no credential goes to a server that is another
	}
	return address.String(), c.request.Credential, nil
}
