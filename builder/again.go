package builder

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mesh-control/mesh/builder/archive"
	"github.com/mesh-control/mesh/registry"
	"github.com/mesh-control/mesh/schema"
)

// again makes an artifact a second time, in a directory of its own, and says whether it came
// out the same. What is published is the first.
func (r *run) again(ctx context.Context, s step, first *staged) error {
	second := *r
	// The name of a build's directory is also that of what it leaves in the engine meanwhile.
	second.dir = filepath.Join(r.dir, filepath.Base(r.dir)+"-2")
	if err := os.MkdirAll(second.dir, 0o700); err != nil {
		return err
	}
	defer func() {
		if err := removeAll(second.dir); err != nil {
			r.builder.log().Warn("directory of a second build cannot be removed", "build", r.job.ID, "error", err)
		}
	}()
	r.say(s.name, "made a second time, to compare")
	made, err := second.make(ctx, s)
	if err != nil {
		return fmt.Errorf("made a second time: %w", err)
	}
	found := schema.Reproduction{Same: made.built.Digest == first.built.Digest && made.built.Image == first.built.Image}
	if !found.Same {
		if found.Difference, err = difference(first, made); err != nil {
			return fmt.Errorf("compare what was made twice: %w", err)
		}
		r.say(s.name, "not reproducible: %s", found.Difference)
	}
	if r.result.Reproducible == nil {
		r.result.Reproducible = map[string]schema.Reproduction{}
	}
	r.result.Reproducible[s.name] = found
	return nil
}

// difference says where two makings of one artifact first part.
func difference(first, second *staged) (string, error) {
	switch {
	case first.upstream != "":
		return fmt.Sprintf("the reference meant %s first and %s then", first.built.Digest, second.built.Digest), nil
	case first.blob == "" || first.built.Digest == second.built.Digest:
		return registry.LayoutDifference(first.layout, second.layout, archive.Difference)
	}
	a, err := os.Open(first.blob)
	if err != nil {
		return "", err
	}
	defer a.Close()
	b, err := os.Open(second.blob)
	if err != nil {
		return "", err
	}
	defer b.Close()
	return archive.Difference(a, b)
}
