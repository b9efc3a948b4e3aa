package backend

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctls of btrfs for subvolumes, and what they take (linux/btrfs.h).
const (
	subvolCreate = 0x5000940e // BTRFS_IOC_SUBVOL_CREATE
	snapCreate   = 0x50009417 // BTRFS_IOC_SNAP_CREATE_V2
	snapDestroy  = 0x5000940f // BTRFS_IOC_SNAP_DESTROY

	// subvolumeInode is the number of the root of every subvolume.
	subvolumeInode = 256
)

type volArgs struct {
	fd   int64
	name [4088]byte
}

type volArgsV2 struct {
	fd, transid, flags uint64
	unused             [4]uint64
	name               [4040]byte
}

// onBtrfs opens a directory of btrfs; -1 when it is of another file system.
func onBtrfs(dir string) (int, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return -1, err
	}
	if st.Type != unix.BTRFS_SUPER_MAGIC {
		return -1, nil
	}
	return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func isSubvolume(path string) bool {
	var fs unix.Statfs_t
	var st unix.Stat_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.BTRFS_SUPER_MAGIC && unix.Lstat(path, &st) == nil && st.Ino == subvolumeInode
}

// makeSubvolume makes a subvolume in a directory; false where that is not on btrfs.
func makeSubvolume(dir, name string) (bool, error) {
	fd, err := onBtrfs(dir)
	if err != nil || fd < 0 {
		return false, err
	}
	defer unix.Close(fd)
	var args volArgs
	copy(args.name[:len(args.name)-1], name)
	return true, ioctl(fd, subvolCreate, unsafe.Pointer(&args))
}

// snapshotSubvolume makes a snapshot of a subvolume; false when it is none.
func snapshotSubvolume(dir, name, from string) (bool, error) {
	if !isSubvolume(from) {
		return false, nil
	}
	fd, err := onBtrfs(dir)
	if err != nil || fd < 0 {
		return false, err
	}
	defer unix.Close(fd)
	src, err := unix.Open(from, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: from, Err: err}
	}
	defer unix.Close(src)
	args := volArgsV2{fd: uint64(src)}
	copy(args.name[:len(args.name)-1], name)
	if err := ioctl(fd, snapCreate, unsafe.Pointer(&args)); err != nil {
		return false, err
	}
	return true, unix.Syncfs(fd)
}

// removeSubvolume removes a subvolume at once, whatever is in it. One that has others in it is left to be removed file
// by file.
func removeSubvolume(dir, name, path string) error {
	if !isSubvolume(path) {
		return nil
	}
	fd, err := onBtrfs(dir)
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	var args volArgs
	copy(args.name[:len(args.name)-1], name)
	if err := ioctl(fd, snapDestroy, unsafe.Pointer(&args)); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func ioctl(fd int, cmd uintptr, arg unsafe.Pointer) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), cmd, uintptr(arg)); e != 0 {
		return e
	}
	return nil
}
