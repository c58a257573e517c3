package registry

import (
	"context"
	"time"

	"github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

// RetryAfter is how long a client waits that is told to.
func RetryAfter(header string) time.Duration { return retryAfter(header, time.Now()) }

// CollectIn collects the garbage of a store that no server holds. Before each removal it calls
// removes, whose error ends it there.
func CollectIn(ctx context.Context, dir string, grace time.Duration, removes func(path string) error) (Collected, error) {
	files := filesystem.New(filesystem.DriverParameters{RootDirectory: dir, MaxThreads: storeThreads})
	return newHeldStore(dir, observed{files, removes}).collect(ctx, time.Now().Add(-grace), false)
}

type observed struct {
	driver.StorageDriver
	removes func(path string) error
}

func (o observed) Delete(ctx context.Context, path string) error {
	if err := o.removes(path); err != nil {
		return err
	}
	return o.StorageDriver.Delete(ctx, path)
}
