package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/openat"
	"github.com/berth-node/berth/internal/patience"
)

// SubPath pins a path inside a volume for the mount with index idx of a container, and returns where. What is pinned
// was reached without leaving the volume and stays what it was then, whatever a container that shares the volume does
// to the path afterwards. A directory that is missing is made, with the mode of the volume.
func (m *Manager) SubPath(
	ctx context.Context, pod *corev1.Pod, container string, idx int, volPath, subPath string,
) (string, error) {
	if subPath == "" {
		return volPath, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	target, err := patience.Ask(ctx, &m.calls, filepath.Join(volPath, filepath.Clean("/"+subPath)), 0, func() (string, error) {
		return m.subPath(pod, container, idx, volPath, subPath)
	})
	if err != nil {
		return "", fmt.Errorf("subPath %q of %s: %w", subPath, volPath, err)
	}
	return target, nil
}

func (m *Manager) subPath(pod *corev1.Pod, container string, idx int, volPath, subPath string) (string, error) {
	spec, err := mountOf(pod, container, idx)
	if err != nil {
		return "", err
	}
	dir, err := m.root.Dir(pod.UID)
	if err != nil {
		return "", err
	}
	source, err := openInside(volPath, subPath)
	if err != nil {
		return "", err
	}
	defer unix.Close(source)
	target := filepath.Join(dir, subPathsDir, spec.Name, container, strconv.Itoa(idx))
	if same, err := alreadyPinned(source, target); err != nil || same {
		return target, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(source, &st); err != nil {
		return "", fmt.Errorf("stat: %w", err)
	}
	if err := makeTarget(target, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return "", err
	}
	shared := spec.MountPropagation != nil && *spec.MountPropagation == corev1.MountPropagationBidirectional
	return target, bind(source, target, shared)
}

func mountOf(pod *corev1.Pod, container string, idx int) (*corev1.VolumeMount, error) {
	if container == "" || strings.HasPrefix(container, ".") || strings.Contains(container, "/") {
		return nil, fmt.Errorf("%q is no name of a container", container)
	}
	find := func(name string, mounts []corev1.VolumeMount) *corev1.VolumeMount {
		if name != container || idx < 0 || idx >= len(mounts) {
			return nil
		}
		return &mounts[idx]
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if m := find(list[i].Name, list[i].VolumeMounts); m != nil {
				return m, nil
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if m := find(pod.Spec.EphemeralContainers[i].Name, pod.Spec.EphemeralContainers[i].VolumeMounts); m != nil {
			return m, nil
		}
	}
	return nil, fmt.Errorf("container %s has no volume mount %d", container, idx)
}

// openInside opens what subPath leads to inside of the directory volPath. The kernel does the walking, and refuses to
// leave the volume by a link or by "..", at every step, so nothing can be swapped between a check and its use.
func openInside(volPath, subPath string) (int, error) {
	if filepath.IsAbs(subPath) {
		return -1, errors.New("must be relative")
	}
	for part := range strings.SplitSeq(subPath, "/") {
		if part == ".." {
			return -1, errors.New("must not contain '..'")
		}
	}
	root, err := unix.Open(volPath, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open volume: %w", err)
	}
	defer unix.Close(root)
	fd, err := beneath(root, subPath, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, explain(err)
	}
	if err := makeInside(root, subPath); err != nil {
		return -1, explain(err)
	}
	fd, err = beneath(root, subPath, 0)
	return fd, explain(err)
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("leads out of the volume: %w", err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("leads through something that is no directory: %w", err)
	}
	return err
}

// beneath opens path without leaving root; more are further restrictions of the walk.
func beneath(root int, path string, more uint64) (int, error) {
	return openat.Open(root, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | more,
	})
}

// makeInside makes the directories of path that are missing, each in one that was opened before.
func makeInside(root int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return err
	}
	// As open as the volume is, for whoever could have written to it.
	mode := st.Mode & (0o777 | unix.S_ISGID)
	parts := strings.Split(filepath.Clean(path), "/")
	at, made := -1, 0
	for n := len(parts) - 1; n >= 0 && at < 0; n-- {
		fd, err := beneath(root, filepath.Join(append([]string{"."}, parts[:n]...)...), 0)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if err == nil {
			at, made = fd, n
		}
	}
	if at < 0 {
		return unix.ENOENT
	}
	for _, name := range parts[made:] {
		err := unix.Mkdirat(at, name, 0o700)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			unix.Close(at)
			return err
		}
		next, openErr := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if openErr != nil {
			return openErr
		}
		if err == nil {
			if err := unix.Fchmod(next, mode); err != nil {
				unix.Close(next)
				return err
			}
		}
		at = next
	}
	return unix.Close(at)
}

// alreadyPinned says whether target is a mount of what source is, as it is when a container starts again. A mount of
// something else is taken away.
func alreadyPinned(source int, target string) (bool, error) {
	mounted, err := mount.Is(target)
	if err != nil || !mounted {
		return false, err
	}
	var a, b unix.Stat_t
	if err := unix.Fstat(source, &a); err != nil {
		return false, err
	}
	if err := unix.Lstat(target, &b); err != nil {
		return false, err
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		return true, nil
	}
	return false, mount.UnmountUnder(target)
}

// makeTarget makes what can be mounted upon: a directory for a directory, a file for anything else.
func makeTarget(target string, dir bool) error {
	if info, err := os.Lstat(target); err == nil {
		if info.IsDir() == dir {
			return nil
		}
		// What was pinned before the container's restart was of the other kind. Neither removal can take data along:
		// the one is of a directory that is empty, the other of a file made here.
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if dir {
		return os.MkdirAll(target, 0o750)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// bind mounts what source is at target. Mounts below source come along, and later ones follow it, but nothing done here
// comes back to them, unless the container is to share its mounts with the host.
func bind(source int, target string, shared bool) error {
	tree, err := unix.OpenTree(source, "",
		unix.AT_EMPTY_PATH|unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone mount: %w", err)
	}
	defer unix.Close(tree)
	if !shared {
		attr := &unix.MountAttr{Propagation: unix.MS_SLAVE}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("cut off mount: %w", err)
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount at %s: %w", target, err)
	}
	return nil
}
