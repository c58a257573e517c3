package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// MakeVolume makes a volume for one use, which [Engine.RemoveVolume] ends.
func (e *Engine) MakeVolume(ctx context.Context) (string, error) {
	var suffix [6]byte
	_, _ = rand.Read(suffix[:])
	name := "mesh-work-" + e.owner + "-" + hex.EncodeToString(suffix[:])
	_, err := e.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: map[string]string{Label: e.owner}})
	if err != nil {
		return "", fmt.Errorf("make volume: %w", err)
	}
	return name, nil
}

// RemoveVolume removes a volume that no container uses any more, also when ctx has ended.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	_, err := e.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// sweepVolumes removes the volumes of uses that ended with their process. Caches have no
// label and stay.
func (e *Engine) sweepVolumes(ctx context.Context) error {
	found, err := e.api.VolumeList(ctx, client.VolumeListOptions{Filters: e.ours()})
	if err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	var errs []error
	for _, v := range found.Items {
		errs = append(errs, e.RemoveVolume(ctx, v.Name))
	}
	return errors.Join(errs...)
}
