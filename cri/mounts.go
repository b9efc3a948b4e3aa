package cri

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/snapshot"
)

// kernelMounts is the real mount table.
type kernelMounts struct{}

func (kernelMounts) prepare(m []*runtimeapi.Mount) error { return checkMounts(m) }

func (kernelMounts) makeDir(path string) error { return os.MkdirAll(path, 0o755) }

func (kernelMounts) mount(mounts []snapshot.Mount, target string) error {
	for _, m := range mounts {
		if err := m.Mount(target); err != nil {
			return errors.Join(err, snapshot.Unmount(target))
		}
	}
	return nil
}

func (kernelMounts) unmount(target string) error { return snapshot.Unmount(target) }

// shmSize is what a pod may put into its shared memory. It is charged to the memory of the container that does.
const shmSize = "size=67108864"

func (kernelMounts) mountShm(path string, owner oci.Owner) error {
	// The directory is there only when the mount was at least tried; which of both, its type says.
	var st unix.Statfs_t
	switch err := unix.Statfs(path, &st); {
	case err == nil && st.Type == unix.TMPFS_MAGIC && isMountpoint(path):
		return nil
	case errors.Is(err, unix.ENOENT):
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	data := fmt.Sprintf("mode=1777,uid=%d,gid=%d,%s", owner.UID, owner.GID, shmSize)
	return unix.Mount("shm", path, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, data)
}

func (kernelMounts) pin(namespace, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o400)
	if err != nil {
		return err
	}
	f.Close()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err == nil && st.Type == unix.NSFS_MAGIC {
		return nil
	}
	return unix.Mount(namespace, path, "", unix.MS_BIND, "")
}

// isMountpoint compares with the directory above, which may be a tmpfs too.
func isMountpoint(path string) bool {
	var a, b unix.Stat_t
	return unix.Lstat(path, &a) == nil && unix.Lstat(filepath.Dir(path), &b) == nil && a.Dev != b.Dev
}

// mountVolatile puts a tmpfs at dir, unless it is on one already. What a run before the last boot left on the disk below is
// covered by it, and of no use to anybody.
func mountVolatile(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if st.Type == unix.TMPFS_MAGIC {
		return nil
	}
	return unix.Mount("berth", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0711")
}
