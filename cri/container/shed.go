package container

import (
	"context"
	"errors"
	"fmt"
)

// Shed removes what a container that has ended has written to its file system, and to the volumes of its image: nobody
// can do anything there any more. It stays with its state and its logs, by which its pod is known.
func (s *Stopper) Shed(ctx context.Context, c *Container) error {
	if err := c.op.Lock(ctx); err != nil {
		return err
	}
	defer c.op.Unlock()
	if c.removed() || c.Record().State != Exited {
		return nil
	}
	b := s.recipe.bundles
	err := b.removeVolumes(c)(ctx)
	if uerr := b.unmountRootfs(c)(ctx); uerr != nil {
		err = errors.Join(err, uerr) // what is mounted still is not emptied
	} else {
		err = errors.Join(err, b.removeSnapshot(c)(ctx))
	}
	if err != nil {
		return fmt.Errorf("remove the files of container %s: %w", c.ID, err)
	}
	return nil
}
