package builder

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// diskPace is how often a build's disks are looked at.
const diskPace = 200 * time.Millisecond

// watchDisks gives a context that ends, with a [Failure] as its cause, when a disk that a build
// writes to has too little left: the machine has other work to do.
func (b *Builder) watchDisks(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	disks := []string{b.Work}
	if b.Engine != nil {
		// An engine that does not answer fails the build that needs it, and one of another machine
		// keeps its files in a directory that is not here.
		if root, err := b.engineRoot(ctx); err == nil {
			disks = append(disks, root)
		}
	}
	look := func() {
		for _, dir := range disks {
			if err := b.enough(dir); err != nil {
				cancel(err)
			}
		}
	}
	look()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(diskPace)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				look()
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// enginePatience is how long a builder waits for an engine that takes a connection and says
// nothing, before it goes on without.
const enginePatience = 5 * time.Second

// engineRoot is the directory of the engine's files, from an engine that answers.
func (b *Builder) engineRoot(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, enginePatience)
	defer cancel()
	return b.Engine.Root(ctx)
}

// enough says whether the disk of a directory has what is to stay free.
func (b *Builder) enough(dir string) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return failed(ReasonWorkingDirectory, "see that the builder can read it", "look at the disk of %s: %w", dir, err)
	}
	size, free := int64(disk.Blocks)*disk.Bsize, int64(disk.Bavail)*disk.Bsize
	least := b.MinFree
	if least == 0 {
		least = min(DefaultMinFree, size/20)
	}
	if free >= least {
		return nil
	}
	return failed(ReasonDiskShort, "make room there, or have the module need less",
		"%d MiB are free on the disk of %s, and builds leave %d MiB free", free>>20, dir, least>>20)
}
