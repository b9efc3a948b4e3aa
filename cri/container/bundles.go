package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/step"
)

// bundles makes the directories of containers and what is mounted there: the root file system, images, volumes.
type bundles struct {
	host     *host.Host
	external *external
}

func (b *bundles) makeBundle(c *Container) step.Act {
	return func(context.Context) error {
		if p := c.Record().LogPath; p != "" {
			if err := b.host.Mounts.MakeDir(filepath.Dir(p)); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(b.host.Paths.Container(c.ID).Rootfs(), 0o700); err != nil {
			return err
		}
		if err := b.external.keepRuntime(c); err != nil || c.Sandbox.IDs == nil {
			return err
		}
		// The pod's root passes through it to its root file system, and may do no more.
		bundle := string(b.host.Paths.Container(c.ID))
		return errors.Join(os.Chown(bundle, 0, int(c.Sandbox.IDs.Root().GID)), os.Chmod(bundle, 0o710))
	}
}

// removeBundle removes file by file, so that a mount that is still there stops it instead of being emptied.
func (b *bundles) removeBundle(c *Container) step.Act {
	return func(ctx context.Context) error {
		if err := b.external.forgetRuntime(ctx, c); err != nil {
			return err
		}
		return host.RemoveContainerDir(b.host.Paths, c.ID)
	}
}

func (b *bundles) prepare(c *Container) step.Act {
	return func(ctx context.Context) error {
		_, err := b.host.Snaps.Prepare(ctx, c.ID, c.Record().Layer)
		return err
	}
}

func (b *bundles) removeSnapshot(c *Container) step.Act {
	return func(ctx context.Context) error { return b.host.Snaps.Remove(ctx, c.ID) }
}

func (b *bundles) mountRootfs(c *Container) step.Act {
	return func(ctx context.Context) error {
		mounts, err := b.host.Snaps.Prepare(ctx, c.ID, c.Record().Layer) // gives the same again
		if err != nil {
			return err
		}
		return b.host.Mounts.Mount(b.mapped(c.Sandbox, mounts), b.host.Paths.Container(c.ID).Rootfs())
	}
}

// mapped shows the files of a snapshot with the ids of the pod.
func (b *bundles) mapped(sb *sandbox.Sandbox, mounts []snapshot.Mount) []snapshot.Mount {
	if sb.IDs == nil {
		return mounts
	}
	out := slices.Clone(mounts)
	for i := range out {
		out[i].IDs = &snapshot.IDs{UserNS: sb.UserNS(b.host.Paths), UID: sb.IDs.Root().UID, GID: sb.IDs.Root().GID}
	}
	return out
}

func (b *bundles) unmountRootfs(c *Container) step.Act {
	return func(context.Context) error {
		return b.host.Mounts.Unmount(b.host.Paths.Container(c.ID).Rootfs())
	}
}
