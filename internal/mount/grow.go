package mount

import (
	"context"
	"fmt"

	"github.com/berth-node/berth/internal/command"
)

// Grow has a file system take all of its device, which has become larger. It is mounted at path.
func Grow(ctx context.Context, device, path, fsType string) error {
	switch fsType {
	case "ext2", "ext3", "ext4":
		return command.Run(ctx, "resize2fs", device)
	case "xfs":
		return command.Run(ctx, "xfs_growfs", "-d", path)
	case "btrfs":
		return command.Run(ctx, "btrfs", "filesystem", "resize", "max", path)
	}
	return fmt.Errorf("grow file system: of the type %q none is made larger here: must be ext2, ext3, ext4, xfs or btrfs", fsType)
}
