package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

func filesystemProbes() []probe {
	return []probe{
		{"overlay", false, "Images are copied for each container instead of being shared: slow starts and much disk.", probeOverlay},
		{"overlay idmapped lowers", false, "Pods with user namespaces need a copy of their image with changed owners.", probeOverlayIdmap},
		{"idmapped mounts", false, "Volumes of pods with user namespaces would show the wrong owners.", probeIdmap},
		{"new mount API", false, "Mounts take a few system calls more, and some races with symlinks are harder to exclude.", probeMountAPI},
		{"openat2", true, "Paths inside volumes and images cannot be resolved safely against symlinks.", probeOpenat2},
		{"tmpfs", true, "emptyDir in memory, secrets and /dev/shm do not work.", probeTmpfs},
		{"memfd", false, "The runtime's helper cannot be sealed against a container that overwrites it.", probeMemfd},
		{"extended attributes", false, "Files of images lose capabilities and ACLs when unpacked.", probeXattr},
	}
}

// inDir runs fn on a thread with a mount namespace of its own and an empty directory below the node's root directory;
// what fn mounts goes with the thread, and the directory is removed.
func inDir(e *env, fn func(dir string) error) (err error) {
	dir, err := os.MkdirTemp(e.dir, ".berth-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return fn(dir)
	})
}

func mkdirs(dir string, names ...string) error {
	for _, n := range names {
		if err := os.Mkdir(filepath.Join(dir, n), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func probeOverlay(_ context.Context, e *env) answer {
	err := inDir(e, func(dir string) error {
		if err := mkdirs(dir, "lower", "upper", "work", "merged"); err != nil {
			return err
		}
		if err := os.WriteFile(dir+"/lower/file", []byte("x"), 0o644); err != nil {
			return err
		}
		opts := fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, dir, dir)
		if err := unix.Mount("overlay", dir+"/merged", "overlay", 0, opts); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		defer func() { _ = unix.Unmount(dir+"/merged", unix.MNT_DETACH) }() // else it goes with the thread
		// Deleting makes a whiteout, which the file system below must be able to hold.
		if err := os.Remove(dir + "/merged/file"); err != nil {
			return fmt.Errorf("whiteout: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(dir+"/upper/file", &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			return errors.New("deleting left no whiteout in the upper directory")
		}
		return nil
	})
	return tried(err, "mounted and written on "+filesystem(e.dir))
}

func probeOverlayIdmap(_ context.Context, e *env) answer {
	err := inDir(e, func(dir string) error {
		if err := mkdirs(dir, "lower", "other", "mapped", "merged"); err != nil {
			return err
		}
		fd, err := idmapped(dir + "/lower")
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dir+"/mapped", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
		defer func() { _ = unix.Unmount(dir+"/mapped", unix.MNT_DETACH) }() // as above
		opts := fmt.Sprintf("lowerdir=%s/mapped:%s/other", dir, dir)
		if err := unix.Mount("overlay", dir+"/merged", "overlay", unix.MS_RDONLY, opts); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		return unix.Unmount(dir+"/merged", unix.MNT_DETACH)
	})
	return tried(err, "mounted on "+filesystem(e.dir))
}

func probeIdmap(_ context.Context, e *env) answer {
	err := inDir(e, func(dir string) error {
		fd, err := idmapped(dir)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
	return tried(err, "a bind mount on "+filesystem(e.dir)+" was mapped")
}

// idmapped clones the mount of dir, detached, with shifted owners.
func idmapped(dir string) (int, error) {
	ns, err := userNamespace(syscall.SysProcIDMap{ContainerID: 0, HostID: 100000, Size: 65536})
	if err != nil {
		return -1, err
	}
	defer ns.Close()
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	return fd, nil
}

func probeMountAPI(_ context.Context, e *env) answer {
	err := inDir(e, func(dir string) error {
		fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("fsopen: %w", err)
		}
		defer unix.Close(fs)
		if err := unix.FsconfigCreate(fs); err != nil {
			return fmt.Errorf("fsconfig: %w", err)
		}
		mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("fsmount: %w", err)
		}
		defer unix.Close(mnt)
		if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
		return unix.Unmount(dir, unix.MNT_DETACH)
	})
	return tried(err, "fsopen, fsmount and move_mount work")
}

func probeTmpfs(_ context.Context, e *env) answer {
	err := inDir(e, func(dir string) error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		return unix.Unmount(dir, unix.MNT_DETACH)
	})
	return tried(err, "mounted with a size")
}

func probeOpenat2(_ context.Context, e *env) answer {
	fd, err := unix.Openat2(unix.AT_FDCWD, e.dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return missing("openat2: %v", err)
	}
	unix.Close(fd)
	return ok("works")
}

func probeMemfd(context.Context, *env) answer {
	fd, err := unix.MemfdCreate("berth-check", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return missing("memfd_create: %v", err)
	}
	defer unix.Close(fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	return tried(err, "made and sealed")
}

func probeXattr(_ context.Context, e *env) answer {
	err := inDir(e, func(dir string) error {
		for _, name := range []string{"user.berth", "trusted.berth"} {
			if err := unix.Setxattr(dir, name, []byte("1"), 0); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
		return nil
	})
	return tried(err, "user and trusted ones on "+filesystem(e.dir))
}

// filesystem names the file system a directory is on.
func filesystem(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return dir
	}
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", 0x2fc12fc1: "zfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	}
	if n, ok := names[int64(st.Type)]; ok {
		return n
	}
	return fmt.Sprintf("file system %#x", st.Type)
}
