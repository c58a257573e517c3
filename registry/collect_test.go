package registry_test

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/registry/registrytest"
	"github.com/mesh-control/mesh/schema"
)

const (
	grace = 2 * time.Hour
	long  = 100 * time.Hour
)

// stored lists the blobs of a store, as hex.
func stored(t *testing.T, dir string) []string {
	t.Helper()
	found := must(filepath.Glob(filepath.Join(dir, "docker/registry/v2/blobs/sha256/*/*/data")))
	for i, path := range found {
		found[i] = filepath.Base(filepath.Dir(path))
	}
	return found
}

// collect waits for the end of a collection.
func collect(t *testing.T, client *registry.Client, grace time.Duration, dry bool) (registry.Collected, error) {
	t.Helper()
	for run := int64(0); ; {
		collection, err := client.Collect(t.Context(), grace, dry, run)
		if err != nil || !collection.Running {
			return collection.Collected, err
		}
		run = collection.ID
	}
}

// deleteAll deletes every manifest that can be listed.
func deleteAll(t *testing.T, client *registry.Client) {
	t.Helper()
	contents, _, err := client.Contents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range contents {
		for range 2 { // the second time it is deleted already
			if err := client.DeleteManifest(t.Context(), content.Repository, content.Digest); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestContentsListWhatIsPublishedWithWhatItNames(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := store.Client(t)
		if contents, dangling, err := client.Contents(t.Context()); err != nil || len(contents)+len(dangling) > 0 {
			t.Fatalf("an empty registry holds %v %v, %v", contents, dangling, err)
		}
		b := newBuilt(t)
		digest := must(b.publish(t.Context(), client))
		index := indexOf("linux/amd64", "linux/arm64")
		image, err := client.PushLayout(t.Context(), writeLayout(t, func(p layout.Path) error { return p.AppendIndex(index) }), "docker.io/library/postgres:15")
		if err != nil {
			t.Fatal(err)
		}
		contents, dangling, err := client.Contents(t.Context())
		if err != nil || len(dangling) > 0 {
			t.Fatal(err, dangling)
		}
		found := map[string]registry.Content{}
		for _, content := range contents {
			found[content.Repository+"@"+content.Digest] = content
		}
		if len(found) != 6 { // the index has an attestation beside its platforms
			t.Errorf("found %d: %v", len(found), found)
		}
		module := found["modules/web@"+digest]
		if module.ArtifactType != schema.MediaTypeManifest || len(module.Blobs) != 3 || !slices.Equal(module.Tags, []string{registry.ContentTag(digest)}) {
			t.Errorf("the module is %+v", module)
		}
		if server := found["modules/web/server@"+b.manifest.Artifacts["server"].Digest]; len(server.Blobs) != 3 {
			t.Errorf("its image is %+v", server)
		}
		carried := found["carried/docker.io/library/postgres@"+image.Digest]
		if len(carried.Children) != 3 || !slices.Contains(carried.Tags, "15") || len(carried.Tags) != 2 {
			t.Errorf("what was carried in is %+v", carried)
		}
	})
}

func TestListingAndCollectingTakeAScopeOfTheirOwn(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	for _, token := range []string{
		store.Token("*", registry.ActionPull, registry.ActionPush, registry.ActionDelete),
		store.Token("modules/*", registry.ActionPull, registry.ActionList, registry.ActionCollect),
	} {
		config := store.Config()
		config.Token, config.Attempts = token, 1
		client := registrytest.Client(t, config)
		if _, err := client.Repositories(t.Context()); statusOf(err) != http.StatusForbidden {
			t.Errorf("repositories listed: %v", err)
		}
		if _, err := collect(t, client, grace, true); statusOf(err) != http.StatusForbidden {
			t.Errorf("garbage collected: %v", err)
		}
	}
	config := store.Config()
	config.Token = store.Token(registry.WholeRegistry, registry.ActionList, registry.ActionCollect)
	client := registrytest.Client(t, config)
	if _, err := client.Repositories(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := collect(t, client, grace, false); err != nil {
		t.Error(err)
	}
	if _, err := collect(t, client, registry.MinGrace-1, false); statusOf(err) != http.StatusBadRequest {
		t.Errorf("collected what a publication may be about to name: %v", err)
	}
}

func TestS1_094_WhatWasDeletedIsPublishedAgain(t *testing.T) {
	t.Parallel()
	registrytest.Each(t, func(t *testing.T, store *registrytest.Registry) {
		client := store.Client(t)
		b := newBuilt(t)
		before := must(b.publish(t.Context(), client))
		publish := func(client *registry.Client) {
			t.Helper()
			if digest := must(b.publish(t.Context(), client)); digest != before {
				t.Errorf("published as %s, before %s", digest, before)
			}
			if modules := checkWhole(t, store); modules != 1 {
				t.Errorf("%d modules", modules)
			}
		}
		// While its bytes still lie there.
		deleteAll(t, client)
		if err := client.Resolve(t.Context(), "modules/web", before); !registry.NotFound(err) {
			t.Fatalf("it is deleted and %v", err)
		}
		publish(client)
		// After they are gone.
		deleteAll(t, client)
		if store.Process == nil {
			store.Age(t, long)
			freed, err := collect(t, client, grace, false)
			if err != nil || freed.Blobs == 0 || freed.Bytes == 0 {
				t.Fatalf("freed %+v, %v", freed, err)
			}
		} else {
			if _, err := collect(t, client, grace, false); !errors.Is(err, registry.ErrUnsupported) {
				t.Fatalf("it collects: %v", err)
			}
			store = collectDistribution(t, store)
			client = store.Client(t)
		}
		if left := stored(t, store.Dir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		publish(client)
	})
}

// collectDistribution does what an operator does: stops the registry, has it collect, and
// starts it again.
func collectDistribution(t *testing.T, store *registrytest.Registry) *registrytest.Registry {
	t.Helper()
	store.Process.Kill()
	file := filepath.Join(t.TempDir(), "config.yml")
	text := "version: 0.1\nstorage: {filesystem: {rootdirectory: " + store.Dir + "}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.CommandContext(t.Context(), "docker-registry", "garbage-collect", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return registrytest.StartDistributionAt(t, store.Dir)
}

func TestCollectingLeavesWhatIsNamedOrYoung(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	client := store.Client(t)
	b := newBuilt(t)
	must(b.publish(t.Context(), client))
	for _, text := range []string{"abandoned", "about to be named"} {
		if err := pushText(t, client, "modules/web", text); err != nil {
			t.Fatal(err)
		}
	}
	whole := len(stored(t, store.Dir))
	// Publishing leaves an empty descriptor's bytes, which only a module without layers names.
	if freed, err := collect(t, client, grace, false); err != nil || freed != (registry.Collected{Young: 3}) {
		t.Errorf("freed %+v of what is young, %v", freed, err)
	}
	store.Age(t, long)
	if there, err := client.HasBlob(t.Context(), "modules/web", digestOf("about to be named")); err != nil || !there {
		t.Fatal(there, err)
	}
	want := registry.Collected{Blobs: 2, Bytes: int64(len("{}") + len("abandoned")), Young: 1}
	if freed, err := collect(t, client, grace, true); err != nil || freed != want || len(stored(t, store.Dir)) != whole {
		t.Errorf("would free %+v, %v", freed, err)
	}
	if freed, err := collect(t, client, grace, false); err != nil || freed != want || len(stored(t, store.Dir)) != whole-2 {
		t.Errorf("freed %+v, %v", freed, err)
	}
	if checkWhole(t, store) != 1 {
		t.Error("the module is gone")
	}
	if again := must(collect(t, client, grace, false)); again != (registry.Collected{Young: 1}) {
		t.Errorf("freed %+v a second time", again)
	}
}

// A manifest without a tag of its own is listed by the index that names it, and collecting
// leaves it: it goes by being deleted.
func TestAManifestWithoutATagIsNotCollected(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	client := store.Client(t)
	index := indexOf("linux/amd64", "linux/arm64")
	image := must(client.PushImageLayout(t.Context(), "modules/web/server", writeLayout(t, func(p layout.Path) error { return p.AppendIndex(index) })))
	contents, _, err := client.Contents(t.Context())
	if err != nil || len(contents) != 4 {
		t.Fatal(contents, err)
	}
	for _, content := range contents {
		if content.Digest == image.Digest {
			continue
		}
		if err := client.DeleteTag(t.Context(), registry.Tag{Repository: "modules/web/server", Name: registry.ContentTag(content.Digest)}); err != nil {
			t.Fatal(err)
		}
	}
	if contents, _, err = client.Contents(t.Context()); err != nil || len(contents) != 4 {
		t.Errorf("without tags of the children: %v, %v", contents, err)
	}
	store.Age(t, long)
	if freed := must(collect(t, client, grace, false)); freed != (registry.Collected{}) {
		t.Errorf("freed %+v of an index that has a tag", freed)
	}
	checkWhole(t, store)
	deleteAll(t, client)
	store.Age(t, long) // who may push has read them
	if freed := must(collect(t, client, grace, false)); freed.Blobs == 0 || len(stored(t, store.Dir)) != 0 {
		t.Errorf("freed %+v, left %q", freed, stored(t, store.Dir))
	}
}

func TestNothingIsCollectedWhileAManifestCannotBeRead(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	client := store.Client(t)
	digest := must(newBuilt(t).publish(t.Context(), client))
	if err := pushText(t, client, "modules/web", "abandoned"); err != nil {
		t.Fatal(err)
	}
	hex := strings.TrimPrefix(digest, "sha256:")
	file := filepath.Join(store.Dir, "docker/registry/v2/blobs/sha256", hex[:2], hex, "data")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store.Age(t, long)
	before := stored(t, store.Dir)
	if _, err := collect(t, client, grace, false); err == nil || !strings.Contains(err.Error(), digest) {
		t.Errorf("collected: %v", err)
	}
	if !slices.Equal(before, stored(t, store.Dir)) {
		t.Error("something was removed")
	}
}

// Whatever a collection had removed when its process was killed, what is kept is whole, the
// next one finishes, and what went is published again.
func TestACollectionBrokenOffAtAnyRemovalLeavesWhatIsNamedWhole(t *testing.T) {
	t.Parallel()
	original := t.TempDir()
	kept, gone := newBuilt(t), newBuilt(t)
	gone.manifest.Description = "another"
	gone.layers[0] = layer("site", "another site")
	artifact := gone.manifest.Artifacts["site"]
	artifact.Digest, artifact.Size = gone.layers[0].Digest, gone.layers[0].Size
	gone.manifest.Artifacts["site"] = artifact
	t.Run("fill", func(t *testing.T) {
		store := registrytest.StartAt(t, original)
		client := store.Client(t)
		must(kept.publish(t.Context(), client))
		old := must(gone.publish(t.Context(), client))
		for repository, digest := range map[string]string{"modules/web": old, "modules/web/server": gone.manifest.Artifacts["server"].Digest} {
			if err := client.DeleteManifest(t.Context(), repository, digest); err != nil {
				t.Fatal(err)
			}
		}
		store.Age(t, long)
	})
	killed := errors.New("killed")
	for n := 1; ; n++ {
		dir := filepath.Join(t.TempDir(), "store")
		if out, err := exec.CommandContext(t.Context(), "cp", "-a", original, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		removals := 0
		_, err := registry.CollectIn(t.Context(), dir, grace, func(string) error {
			if removals++; removals >= n { // and nothing after it
				return killed
			}
			return nil
		})
		if err != nil && !strings.Contains(err.Error(), killed.Error()) { // the library wraps nothing
			t.Fatal(err)
		}
		store := registrytest.StartAt(t, dir)
		if modules := checkWhole(t, store); modules != 1 {
			t.Fatalf("removal %d: %d modules", n, modules)
		}
		client := store.Client(t)
		must(collect(t, client, grace, false))
		if left := must(registry.CollectIn(t.Context(), dir, grace, func(path string) error {
			return errors.New("left over: " + path)
		})); left != (registry.Collected{}) {
			t.Errorf("removal %d: the next collection left %+v", n, left)
		}
		must(gone.publish(t.Context(), client))
		if modules := checkWhole(t, store); modules != 2 {
			t.Fatalf("removal %d: %d modules", n, modules)
		}
		if removals < n {
			if n < 10 {
				t.Errorf("%d removals only", removals)
			}
			return
		}
	}
}

// A publication that finds old bytes, which nothing names, while they are being collected.
func TestPublishingWhileCollectingLosesNothing(t *testing.T) {
	t.Parallel()
	store := registrytest.Start(t)
	client := store.Client(t)
	b := newBuilt(t)
	digest := must(b.publish(t.Context(), client))
	for range 15 {
		deleteAll(t, client)
		store.Age(t, long)
		var collecting sync.WaitGroup
		for range 2 {
			collecting.Go(func() {
				for range 3 {
					if _, err := collect(t, client, grace, false); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if again := must(b.publish(t.Context(), client)); again != digest {
			t.Errorf("published as %s", again)
		}
		collecting.Wait()
		if modules := checkWhole(t, store); modules != 1 {
			t.Fatalf("%d modules", modules)
		}
	}
}
