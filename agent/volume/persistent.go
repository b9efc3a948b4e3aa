package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// localPlugin holds the mounts of local volumes that are block devices with a file system.
const localPlugin = "kubernetes.io~local-volume"

// setupPersistent makes what a claim is bound to usable.
func (m *Manager) setupPersistent(
	ctx context.Context, dir string, pod *corev1.Pod, v *corev1.Volume, pv *corev1.PersistentVolume, chap map[string][]byte,
) (string, error) {
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
	if err := usedAs(pod, v.Name, block); err != nil {
		return "", err
	}
	switch s := &pv.Spec; {
	case block && s.Local != nil:
		return s.Local.Path, m.localDevice(s.Local.Path)
	case s.ISCSI != nil:
		return m.setupISCSI(ctx, dir, pod, v, s.ISCSI, s.MountOptions, block, chap)
	case block:
		return "", fmt.Errorf("persistentvolume %q: this kind of volume cannot have the volumeMode Block: local and iscsi ones can", pv.Name)
	case s.HostPath != nil:
		return s.HostPath.Path, m.setupHostPath(s.HostPath)
	case s.Local != nil:
		return m.setupLocal(ctx, dir, pod, v, pv)
	case s.NFS != nil:
		return m.setupNFS(ctx, dir, v.Name, s.NFS, s.MountOptions)
	}
	return "", fmt.Errorf("persistentvolume %q: this kind of volume is not there yet", pv.Name)
}

// usedAs says where a container uses a volume in the other mode than it has.
func usedAs(pod *corev1.Pod, volume string, block bool) error {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			mount := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
			device := slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume })
			if block && mount {
				return fmt.Errorf("volume has volumeMode Block, but is in volumeMounts of container %s: it must be in volumeDevices", c.Name)
			}
			if !block && device {
				return fmt.Errorf("volume has volumeMode Filesystem, but is in volumeDevices of container %s: it must be in volumeMounts", c.Name)
			}
		}
	}
	return nil
}

// localInfo is what a local volume is; it is never made.
func (m *Manager) localInfo(path string) (os.FileInfo, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("local path %q is not absolute", path)
	}
	if err := m.refuseOwn(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("local path %s: %w", path, errors.Unwrap(err))
	}
	return info, nil
}

// localDevice holds a local volume with the volumeMode Block to being a block device.
func (m *Manager) localDevice(path string) error {
	info, err := m.localInfo(path)
	if err == nil && !isBlock(info.Mode()) {
		err = fmt.Errorf("local path %s is %s: with the volumeMode Block it must be a block device", path, describe(info.Mode()))
	}
	return err
}

func isBlock(mode os.FileMode) bool { return mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0 }

// setupLocal takes a directory as it is, and mounts the file system of a block device, which is made when there is nothing on it. The group
// is that of the pod.
func (m *Manager) setupLocal(ctx context.Context, dir string, pod *corev1.Pod, v *corev1.Volume, pv *corev1.PersistentVolume) (string, error) {
	path := pv.Spec.Local.Path
	info, err := m.localInfo(path)
	switch {
	case err != nil:
		return "", err
	case isBlock(info.Mode()):
		fsType := ""
		if pv.Spec.Local.FSType != nil {
			fsType = *pv.Spec.Local.FSType
		}
		at := filepath.Join(dir, volumesDir, localPlugin, v.Name)
		if err := m.mountDevice(ctx, path, at, fsType, pv.Spec.MountOptions, false); err != nil {
			return "", fmt.Errorf("local path %s: %w", path, err)
		}
		path = at
	case !info.IsDir():
		return "", fmt.Errorf("local path %s is %s: it must be a directory or a block device", path, describe(info.Mode()))
	}
	return path, takeGroup(pod, path)
}

// setupNFS mounts an export. Whatever the server does, taking it away again does not wait for it.
func (m *Manager) setupNFS(ctx context.Context, dir, name string, n *corev1.NFSVolumeSource, options []string) (string, error) {
	path := filepath.Join(dir, volumesDir, nfsPlugin, name)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return "", err
	}
	if mounted, err := isMount(path); err != nil || mounted {
		return path, err
	}
	tool, err := exec.LookPath("mount.nfs")
	if err != nil {
		return "", errors.New("NFS needs the program mount.nfs on the node: install nfs-common (Debian, Ubuntu) or nfs-utils (Fedora, RHEL, Alpine)")
	}
	if n.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	args := []string{n.Server + ":" + n.Path, path}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	out, err := exec.CommandContext(ctx, tool, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mount %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return path, nil
}
