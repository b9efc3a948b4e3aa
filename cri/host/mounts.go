package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/patience"
	"github.com/moby/sys/mountinfo"
)

// KernelMounts is the real mount table.
type KernelMounts struct{ calls *patience.Calls }

// NewKernelMounts returns the mount table of this machine.
func NewKernelMounts() KernelMounts { return KernelMounts{new(patience.Calls)} }

// hostPathPatience is how long a host path may take to say what it is: it may be on a file system that does not answer.
const hostPathPatience = 10 * time.Second

// Prepare makes the host paths exist that containers mount, and refuses what cannot be mounted. One that does not
// answer is waited for so long only.
func (k KernelMounts) Prepare(m []*runtimeapi.Mount) error {
	for _, one := range m {
		ctx, cancel := context.WithTimeout(context.Background(), hostPathPatience)
		err := k.calls.Do(ctx, "host path "+one.GetHostPath(), 0, func() error { return checkMount(one) })
		cancel()
		if errors.Is(err, patience.ErrNoAnswer) {
			err = fmt.Errorf("mount %s: %w", one.GetContainerPath(), err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// MakeDir makes a directory with all above it.
func (KernelMounts) MakeDir(path string) error { return os.MkdirAll(path, 0o755) }

// Mount mounts all of them at one place, or none.
func (KernelMounts) Mount(mounts []snapshot.Mount, target string) error {
	for _, m := range mounts {
		if err := m.Mount(target); err != nil {
			return errors.Join(err, snapshot.Unmount(target))
		}
	}
	return nil
}

// Unmount takes away all that is mounted at a place. It is no error when nothing is.
func (KernelMounts) Unmount(target string) error { return snapshot.Unmount(target) }

// shmSize is what a pod may put into its shared memory. It is charged to the memory of the container that does.
const shmSize = "size=67108864"

// MountShm implements [Mounts].
func (KernelMounts) MountShm(path string, owner oci.Owner, mode fs.FileMode) error {
	// The directory is there only when the mount was at least tried; which of both, its type says.
	var st unix.Statfs_t
	switch err := unix.Statfs(path, &st); {
	case err == nil && st.Type == unix.TMPFS_MAGIC && IsMountpoint(path):
		return nil
	case errors.Is(err, unix.ENOENT):
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	data := fmt.Sprintf("mode=%o,uid=%d,gid=%d,%s", mode, owner.UID, owner.GID, shmSize)
	return unix.Mount("shm", path, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, data)
}

// Pin keeps a namespace alive by a bind mount.
func (KernelMounts) Pin(namespace, path string) error {
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

// IsMountpoint compares with the directory above, which may be a tmpfs too.
func IsMountpoint(path string) bool {
	var a, b unix.Stat_t
	return unix.Lstat(path, &a) == nil && unix.Lstat(filepath.Dir(path), &b) == nil && a.Dev != b.Dev
}

// mountVolatile puts a tmpfs at dir, unless it is on one already. What a run before the last boot left on the disk
// below is covered by it, and of no use to anybody.
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

// checkMount makes a missing host path, as CRI clients are used to, and refuses propagation the host's mount does not
// give.
func checkMount(m *runtimeapi.Mount) error {
	src := m.GetHostPath()
	if m.GetImage() != nil {
		if src != "" {
			return fault.Invalidf("mount %s: both an image and a host path", m.GetContainerPath())
		}
		if !m.GetReadonly() {
			return fault.Invalidf("mount %s: an image is mounted read-only, so readonly must be true", m.GetContainerPath())
		}
		return nil
	}
	if src == "" {
		return fault.Invalidf("mount %s: no host path", m.GetContainerPath())
	}
	if _, err := os.Stat(src); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(src, 0o755); err != nil {
			return fmt.Errorf("make host path of mount %s: %w", m.GetContainerPath(), err)
		}
	} else if err != nil {
		return fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
	}
	if m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		return nil
	}
	return checkPropagation(src, m.GetPropagation())
}

func checkPropagation(src string, want runtimeapi.MountPropagation) error {
	real, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(real))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	var at *mountinfo.Info
	for _, m := range mounts {
		// Of mounts at one place the last is on top.
		if at == nil || len(m.Mountpoint) >= len(at.Mountpoint) {
			at = m
		}
	}
	if at == nil {
		return fmt.Errorf("no mount found for %q", src)
	}
	shared, slave := strings.Contains(at.Optional, "shared:"), strings.Contains(at.Optional, "master:")
	if shared || slave && want == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER {
		return nil
	}
	kind := "shared"
	if want == runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER {
		kind = "shared or slave"
	}
	return fmt.Errorf("path %q is mounted on %q but it is not a %s mount", src, at.Mountpoint, kind)
}

// MakeDirs makes the directories whose content a boot ends; those below the root directory are made by who needs them,
// when it can be written. They are on tmpfs, wherever the run directory is: each pod makes and removes a dozen small
// files there, and a filesystem on a disk takes ten times as long for that.
func MakeDirs(l Layout) error {
	if err := os.MkdirAll(l.Run, 0o711); err != nil {
		return err
	}
	for _, dir := range l.Volatile() {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		if err := mountVolatile(dir); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
		// What is in them is closed to others; the root of a pod with ids of its own is nobody here and has to come by.
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	return nil
}
