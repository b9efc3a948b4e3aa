package mount

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// attributes are the options of mount(8) that a mount of a part of a file system can have for itself, and how the
// kernel is told.
func attributes(option string) (set, clear uint64, ok bool) {
	switch option {
	case "ro":
		return unix.MOUNT_ATTR_RDONLY, 0, true
	case "rw":
		return 0, unix.MOUNT_ATTR_RDONLY, true
	case "nosuid":
		return unix.MOUNT_ATTR_NOSUID, 0, true
	case "nodev":
		return unix.MOUNT_ATTR_NODEV, 0, true
	case "noexec":
		return unix.MOUNT_ATTR_NOEXEC, 0, true
	case "nodiratime":
		return unix.MOUNT_ATTR_NODIRATIME, 0, true
	case "nosymfollow":
		return unix.MOUNT_ATTR_NOSYMFOLLOW, 0, true
	case "noatime":
		return unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME, true
	case "relatime":
		return 0, unix.MOUNT_ATTR__ATIME, true
	case "strictatime":
		return unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME, true
	}
	return 0, 0, false
}

// NotForBind is the first option that Bind does not know; "" when it knows them all.
func NotForBind(options []string) string {
	i := slices.IndexFunc(options, func(o string) bool { _, _, ok := attributes(o); return !ok })
	if i < 0 {
		return ""
	}
	return options[i]
}

// Bind mounts what is at source, a directory or a file, at target too. It has its options from the first moment on.
func Bind(source, target string, options []string) error {
	var attr unix.MountAttr
	for _, o := range options {
		set, clear, ok := attributes(o)
		if !ok {
			return fmt.Errorf("bind %s: no such option of a part of a file system: %q", source, o)
		}
		attr.Attr_set = attr.Attr_set&^clear | set
		attr.Attr_clr |= clear
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	defer unix.Close(fd)
	// It has no peers: what is mounted there by the host or by a container is nobody else's.
	attr.Propagation = unix.MS_PRIVATE
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("bind %s: set options: %w", source, err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s at %s: %w", source, target, err)
	}
	return nil
}

// Unmount unmounts what is mounted at path itself, all of it where mounts lie on top of each other. It is no error when
// there is nothing. What is in use stays, and is an error of the kind EBUSY.
func Unmount(path string) error {
	for range maxPasses {
		mounted, err := Is(path)
		if err != nil || !mounted {
			return err
		}
		err = unmountIdle(path)
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return fmt.Errorf("unmount %s: mounts keep coming back", path)
}

// A process that is being started has all that this one had open, and the kernel closes it on the way to its program,
// after whoever started it goes on. No event tells that it has.
const (
	busyPause = time.Millisecond
	busyTries = 8 // a quarter of a second in all
)

// unmountIdle unmounts what nobody uses, and takes nobody's start of a process for a use.
func unmountIdle(path string) error {
	for try := 1; ; try++ {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if !errors.Is(err, unix.EBUSY) || try == busyTries {
			return err
		}
		time.Sleep(busyPause << try)
	}
}
