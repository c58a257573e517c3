package source_test

import (
	"context"
	"errors"
	"testing"

	"github.com/mesh-control/mesh/catalogue/source"
	"github.com/mesh-control/mesh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

func client(t *testing.T, config source.Config) *source.Client {
	t.Helper()
	if config.Dir == "" {
		config.Dir = t.TempDir()
	}
	c, err := source.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestKnownDirectoriesAreNotDescendedInto(t *testing.T) {
	t.Parallel()
	repo := testenv.Git(t)
	for _, path := range []string{"a/module.json", "a/b/module.json", "c/module.json"} {
		repo.Write(path, path)
	}
	repo.Commit("first")
	c := client(t, source.Config{})
	snapshot, err := c.Fetch(t.Context(), repo.URL(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	known := repo.Run("rev-parse", "HEAD:a")
	files, err := snapshot.Walk(t.Context(), func(path, tree string) bool { return path == "a" && tree == known })
	if err != nil || len(files) != 2 || files[0].Path != "a" || !files[0].Known || files[1].Path != "c" || files[1].Known {
		t.Errorf("%+v, %v", files, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := snapshot.Walk(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
