package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/berth-node/berth/internal/command"
)

// defaultFSType is the file system of a device whose volume names none, as under kubelet.
const defaultFSType = "ext4"

// Devices mounts the file systems of block devices. The kinds of volumes that have such share one.
//
// It does not stand on k8s.io/mount-utils: SafeFormatAndMount takes no context, so that a device that does not answer
// would hold up the agent for ever, and makes a file system on every device on which blkid finds none, which may be
// somebody's data all the same.
type Devices struct {
	locks deviceLocks // held while a device gets a file system and is mounted: no two pods make one on it
}

// FileSystem is what is to be mounted of a device.
type FileSystem struct {
	Device   string
	Type     string // "" = ext4
	Options  []string
	ReadOnly bool
}

// Mount mounts the file system of a block device at path, which it makes. On a device on which nothing is at all a file
// system is made before. One that has anything else on it is never written to: that may be somebody's data.
func (d *Devices) Mount(ctx context.Context, path string, f FileSystem) error {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	if mounted, err := Is(path); err != nil || mounted {
		return err
	}
	unlock, err := d.locks.lock(ctx, f.Device)
	if err != nil {
		return err
	}
	defer unlock()
	has, err := onDevice(ctx, f.Device)
	if err != nil {
		return err
	}
	fsType, options := cmp.Or(f.Type, defaultFSType), f.Options
	if f.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	switch {
	case has == "" && f.ReadOnly:
		return errors.New("there is no file system on it, and it is read-only: none can be made")
	case has == "":
		if err := Format(ctx, f.Device, fsType); err != nil {
			return err
		}
	case !slices.Contains(options, "ro"):
		if err := Check(ctx, f.Device, has); err != nil {
			return err
		}
	}
	if err := Device(ctx, path, FileSystem{Device: f.Device, Type: fsType, Options: options}); err != nil {
		if has != "" && has != fsType {
			return fmt.Errorf("there is %s on it, not %s: %w", has, fsType, err)
		}
		return err
	}
	return nil
}

// isType says whether a text is the name of a type of file systems. mount(8) runs a program of the node for a type that
// it does not know, and for fuse.PROGRAM that may be any.
func isType(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}) && s[0] != '-'
}

// Device mounts the file system that is on a device.
func Device(ctx context.Context, path string, f FileSystem) error {
	if t := cmp.Or(f.Type, defaultFSType); !isType(t) {
		return fmt.Errorf("%.100q is no type of a file system on a device: must be letters, digits, - and _", t)
	}
	options := f.Options
	if f.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	args := []string{"-t", cmp.Or(f.Type, defaultFSType)}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	return command.Run(ctx, "mount", append(args, f.Device, path)...)
}

// onDevice says what is on a device: a file system, or a table of partitions; "" when it is blank. The device itself is
// read, not what udev remembers of it.
func onDevice(ctx context.Context, device string) (string, error) {
	said, err := command.Call{Name: "blkid", Args: []string{"-p", "-o", "export", "-s", "TYPE", "-s", "PTTYPE", device}}.Run(ctx)
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return parseBlkid(said.Out)
	case ok && exit.ExitCode() == 2: // it has found nothing
		return "", blank(device)
	}
	return "", err
}

// parseBlkid takes what blkid -o export prints.
func parseBlkid(out string) (string, error) {
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "TYPE":
			return value, nil
		case "PTTYPE":
			return "a partition table (" + value + ")", nil
		}
	}
	return "", fmt.Errorf("blkid does not say what is on it: %q", out)
}

// How much of the beginning and the end of a device has to be zeros before it is taken for blank. Data that blkid does
// not know is data too: a database on the raw device, or an encrypted one. Partitions begin at 1 MiB, so that a disk
// whose partition table was lost shows behind that what it has; and what some keep at the end, such as a second
// partition table, says that there is something.
const (
	blankBegin = 4 << 20
	blankEnd   = 1 << 20
)

// blank says why a device cannot be taken for blank.
func blank(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("find size of %s: %w", device, err)
	}
	buf := make([]byte, blankBegin)
	for _, part := range []struct{ at, length int64 }{{0, min(size, blankBegin)}, {max(0, size-blankEnd), min(size, blankEnd)}} {
		if _, err := f.ReadAt(buf[:part.length], part.at); err != nil {
			return fmt.Errorf("read %s: %w", device, err)
		}
		if slices.ContainsFunc(buf[:part.length], func(b byte) bool { return b != 0 }) {
			return errors.New("there is data on it that is no file system: to have one made, clear its first 4 MiB and its last MiB")
		}
	}
	return nil
}

// Format makes a file system on a device on which nothing is that anybody wants. options are for the program that does
// it.
func Format(ctx context.Context, device, fsType string, options ...string) error {
	var args []string
	switch fsType {
	case "ext3", "ext4":
		// No blocks for root alone: who writes is a container.
		args = []string{"-F", "-m0"}
	case "xfs", "btrfs", "ext2":
	default:
		return fmt.Errorf("there is no file system on it, and none of the type %q is made here: must be ext2, ext3, ext4, xfs or btrfs", fsType)
	}
	return command.Run(ctx, "mkfs."+fsType, slices.Concat(args, options, []string{device})...)
}

// Check repairs what a crash has left, as the machine does at its start. Some file systems do that when they are
// mounted.
func Check(ctx context.Context, device, fsType string) error {
	if !strings.HasPrefix(fsType, "ext") {
		return nil
	}
	// Without the program the kernel replays the journal, and says when that is not enough.
	said, err := command.Call{Name: "fsck." + fsType, Args: []string{"-a", device}}.Run(ctx)
	exit, ok := errors.AsType[*exec.ExitError](err)
	// 1: errors were corrected. 8: it could not work, for one because another pod has the volume mounted.
	const uncorrected = 4
	if ok && exit.ExitCode()&uncorrected != 0 {
		return fmt.Errorf("fsck.%s has found errors that it does not correct by itself: %s", fsType, strings.TrimSpace(said.Out+said.Said))
	}
	return nil
}

// IsBlock says whether a file is a block device.
func IsBlock(mode os.FileMode) bool { return mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0 }
