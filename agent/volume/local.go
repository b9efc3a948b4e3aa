package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/patience"
)

// local are directories and block devices of the node that somebody has set aside for claims.
type local struct {
	own     ownDirs
	devices *mount.Devices
	calls   *patience.Calls
}

// Traits says that a device is mounted in the pod's directory, and that it may be a volume as it is.
func (local) Traits() kind.Traits { return kind.Traits{Plugin: "local-volume", Block: true} }

// Makes says whether the source is a local volume.
func (local) Makes(s kind.Source) bool { return s.Bound != nil && s.Bound.Spec.Local != nil }

// Setup takes a directory as it is, and mounts the file system of a block device, which is made when there is nothing
// on it. The group is that of the pod.
func (l local) Setup(ctx context.Context, v *kind.Volume) (kind.Made, error) {
	source := v.Bound.Spec.Local
	asking, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	info, err := patience.Ask(asking, l.calls, "local path "+source.Path, 0, func() (os.FileInfo, error) { return l.info(source.Path) })
	switch {
	case err != nil:
		return kind.Made{}, err
	case v.Block() && mount.IsBlock(info.Mode()):
		return kind.Made{Path: source.Path}, nil
	case v.Block():
		return kind.Made{}, wrongKind(source.Path, info, "with the volumeMode Block it must be a block device")
	case info.IsDir():
		return kind.Made{Path: source.Path, Group: true}, nil
	case !mount.IsBlock(info.Mode()):
		return kind.Made{}, wrongKind(source.Path, info, "it must be a directory or a block device")
	}
	what := mount.FileSystem{Device: source.Path, Options: v.MountOptions()}
	if source.FSType != nil {
		what.Type = *source.FSType
	}
	at := v.Path(l.Traits().Plugin)
	if err := l.devices.Mount(ctx, at, what); err != nil {
		return kind.Made{}, fmt.Errorf("local path %s: %w", source.Path, err)
	}
	return kind.Made{Path: at, Group: true}, nil
}

func wrongKind(path string, info os.FileInfo, must string) error {
	return fmt.Errorf("local path %s is %s: %s", path, describe(info.Mode()), must)
}

// info is what a local volume is; it is never made.
func (l local) info(path string) (os.FileInfo, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("local path %q is not absolute", path)
	}
	if err := l.own.refuse(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("local path %s: %w", path, errors.Unwrap(err))
	}
	return info, nil
}
