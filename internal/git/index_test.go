package git_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/mesh-control/mesh/internal/git"
	"github.com/mesh-control/mesh/internal/testenv"
)

// What lies on disk is what lies in memory, deltas of deltas and an empty file included.
func TestObjectsOnDiskAreThoseInMemory(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	text := strings.Repeat("a line that stays\n", 2000)
	for i := range 20 {
		repo.Write("grown", text+strings.Repeat("and one more\n", i*50))
		repo.Write(fmt.Sprintf("near/%d", i), text+fmt.Sprint(i))
		repo.Write("empty", "")
		repo.Commit(fmt.Sprint(i))
	}
	repo.Run("repack", "-a", "-d", "--quiet", "--depth=50", "--window=50")
	deep := repo.Run("rev-parse", "HEAD~10")
	packs, err := filepath.Glob(filepath.Join(repo.Bare, "objects/pack/*.idx"))
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs %v, %v", packs, err)
	}
	if out := repo.Run("verify-pack", "--verbose", packs[0]); !strings.Contains(out, "chain length = 3") {
		t.Fatalf("the pack has no chains of deltas:\n%s", out)
	}
	small, large := client(t, git.Config{MemoryBytes: 1}), client(t, git.Config{})
	for _, ref := range []string{"main", deep} { // a shallow fetch, and one of the whole history
		onDisk, err := small.Fetch(t.Context(), repo.URL(), ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		inMemory, err := large.Fetch(t.Context(), repo.URL(), ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		if disk, memory := content(t, onDisk), content(t, inMemory); disk != memory || len(disk) < 5*len(text) {
			t.Errorf("%s: %d bytes on disk, %d in memory", ref, len(disk), len(memory))
		}
		for _, c := range []*git.Commit{onDisk, inMemory} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// content is every file of a commit, with its name.
func content(t *testing.T, c *git.Commit) string {
	t.Helper()
	var b strings.Builder
	tree, err := object.GetTree(c.Objects, c.Tree)
	if err != nil {
		t.Fatal(err)
	}
	err = tree.Files().ForEach(func(f *object.File) error {
		data, err := f.Contents()
		fmt.Fprintf(&b, "%s %s\n%s", f.Name, f.Hash, data)
		if plumbing.ComputeHash(plumbing.BlobObject, []byte(data)) != f.Hash {
			t.Errorf("%s is not what its hash says", f.Name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
