package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// setupPersistent makes what a claim is bound to usable.
func (m *Manager) setupPersistent(ctx context.Context, dir string, pod *corev1.Pod, v *corev1.Volume, pv *corev1.PersistentVolume) (string, error) {
	switch s := &pv.Spec; {
	case s.HostPath != nil:
		return s.HostPath.Path, m.setupHostPath(s.HostPath)
	case s.Local != nil:
		return s.Local.Path, m.setupLocal(pod, s.Local)
	case s.NFS != nil:
		return m.setupNFS(ctx, dir, v.Name, s.NFS, s.MountOptions)
	}
	return "", fmt.Errorf("persistentvolume %q: this kind of volume is not there yet", pv.Name)
}

// setupLocal holds a local volume to being a directory. Unlike a host path it is never made, and its group is that of the pod.
func (m *Manager) setupLocal(pod *corev1.Pod, l *corev1.LocalVolumeSource) error {
	if !filepath.IsAbs(l.Path) {
		return fmt.Errorf("local path %q is not absolute", l.Path)
	}
	if err := m.refuseOwn(l.Path); err != nil {
		return err
	}
	info, err := os.Stat(l.Path)
	if err != nil {
		return fmt.Errorf("local path %s: %w", l.Path, errors.Unwrap(err))
	}
	if !info.IsDir() {
		return fmt.Errorf("local path %s is %s: it must be a directory (mount a block device on one)", l.Path, describe(info.Mode()))
	}
	return takeGroup(pod, l.Path)
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
