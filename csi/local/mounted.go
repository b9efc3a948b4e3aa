package local

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/mount"
)

// mountedAt is where the kernel has a volume mounted, whatever the records say; "": nowhere.
func (b *backends) mountedAt(ctx context.Context, v record.Volume) (string, error) {
	may := func(m *mountinfo.Info) bool { return strings.HasSuffix(m.Root, "/"+v.ID) }
	if v.Type != typeDirectory {
		path, err := b.deviceOf(ctx, v)
		if err != nil || path == "" {
			return "", err
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return "", fmt.Errorf("find device: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return "", fmt.Errorf("find device %s: %w", path, err)
		}
		may = func(m *mountinfo.Info) bool { return isOn(m, st.Rdev) || m.Root == "/"+filepath.Base(path) }
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !may(m), false })
	if err != nil {
		return "", fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range all {
		// The driver of another data directory may have a volume of the same name.
		if ours, err := b.isOf(ctx, v, m.Mountpoint); err != nil || ours {
			return m.Mountpoint, err
		}
	}
	return "", nil
}

// isOn says whether a mount is of a file system on a device. Of btrfs the kernel tells a number that is of no device,
// since it may be on several, and the device by its name.
func isOn(m *mountinfo.Info, device uint64) bool {
	if m.Major == int(unix.Major(device)) && m.Minor == int(unix.Minor(device)) {
		return true
	}
	if m.FSType != "btrfs" {
		return false
	}
	var st unix.Stat_t
	return unix.Stat(m.Source, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == device
}

// isAt says whether a volume is mounted at a path.
func (b *backends) isAt(ctx context.Context, v record.Volume, path string) (bool, error) {
	if mounted, err := mount.Is(path); err != nil || !mounted {
		return false, err
	}
	return b.isOf(ctx, v, path)
}

// isOf says whether what is mounted at a path is a volume.
func (b *backends) isOf(ctx context.Context, v record.Volume, path string) (bool, error) {
	var at, own unix.Stat_t
	if err := unix.Lstat(path, &at); err != nil {
		return false, err
	}
	if v.Type == typeDirectory {
		err := unix.Lstat(b.dirs.Path(v.ID), &own)
		return at.Dev == own.Dev && at.Ino == own.Ino, err
	}
	device, err := b.deviceOf(ctx, v)
	if err != nil || device == "" {
		return false, err
	}
	if err := unix.Stat(device, &own); err != nil {
		return false, err
	}
	if own.Rdev == at.Dev || v.Block && own.Rdev == at.Rdev {
		return true, nil
	}
	if v.Block {
		return false, nil
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
	if err != nil {
		return false, fmt.Errorf("list mounts: %w", err)
	}
	// The one that is listed last lies on top of the others.
	return len(all) > 0 && isOn(all[len(all)-1], own.Rdev), nil
}
