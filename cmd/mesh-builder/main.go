// Command mesh-builder builds modules. Started without a verb it takes builds from the
// broker, one at a time; `mesh-builder build DIR [PATH]` builds a local repository by hand.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, nil))
}
