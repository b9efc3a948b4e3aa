package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
)

// emptyDirMode lets every user of every container write, whatever user that is.
const emptyDirMode = 0o777

// EmptyDir is where the files of a pod's emptyDir are.
func EmptyDir(root string, uid types.UID, name string) string {
	return filepath.Join(root, "pods", string(uid), volumesDir, emptyDirPlugin, name)
}

// setupEmptyDir makes the directory of v in parent.
func (m *Manager) setupEmptyDir(parent string, pod *corev1.Pod, v *corev1.Volume) error {
	path := filepath.Join(parent, v.Name)
	if err := m.makeOwned(parent, pod, v); err != nil {
		return err
	}
	var kind, data string
	switch medium := v.EmptyDir.Medium; {
	case medium == corev1.StorageMediumDefault:
		return nil
	case medium == corev1.StorageMediumMemory:
		kind, data = "tmpfs", fmt.Sprintf("size=%d", memorySize(pod, v.EmptyDir))
	default:
		size, err := pageSize(pod, medium)
		if err != nil {
			return err
		}
		kind, data = "hugetlbfs", fmt.Sprintf("pagesize=%d", size)
		if l := v.EmptyDir.SizeLimit; l != nil && l.Value() > 0 {
			data += fmt.Sprintf(",size=%d", l.Value())
		}
	}
	mounted, err := isMount(path)
	if err != nil || mounted {
		return err
	}
	mode, gid := ownership(pod, v.EmptyDir)
	data += fmt.Sprintf(",mode=%o", mode)
	if gid >= 0 {
		data += fmt.Sprintf(",gid=%d", gid)
	}
	return mountMemory(kind, path, data)
}

// makeOwned makes a directory with its owner and mode in one step: it has its name only once it is complete, and one that
// exists is left alone, since the pod may have changed it.
func (m *Manager) makeOwned(parent string, pod *corev1.Pod, v *corev1.Volume) error {
	path := filepath.Join(parent, v.Name)
	if info, err := os.Lstat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is in the way and no directory", path)
		}
		return nil
	}
	staged := filepath.Join(parent, stagingPrefix+v.Name)
	if err := os.Mkdir(staged, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	mode, gid := ownership(pod, v.EmptyDir)
	if gid >= 0 {
		if err := os.Lchown(staged, -1, gid); err != nil {
			return err
		}
	}
	if l := v.EmptyDir.SizeLimit; m.cfg.Quotas && l != nil && l.Sign() > 0 && v.EmptyDir.Medium == corev1.StorageMediumDefault {
		// Without it what is used is counted, once in a while.
		if err := m.limitDir(staged, pod.UID, v.Name, l.Value()); err != nil {
			m.log.Warn("the file system does not limit a volume", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "volume", v.Name, "error", err)
		}
	}
	// After the owner, whose change would clear the setgid bit, and by chmod, which knows no umask.
	if err := unix.Chmod(staged, mode); err != nil {
		return fmt.Errorf("chmod %s: %w", staged, err)
	}
	return os.Rename(staged, path)
}

// ownership is the mode and group of an emptyDir. With setgid the files a pod writes get the pod's group too.
func ownership(pod *corev1.Pod, e *corev1.EmptyDirVolumeSource) (mode uint32, gid int) {
	mode, gid = emptyDirMode, -1
	if e.Mode != nil {
		mode = uint32(*e.Mode)
	}
	if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		mode, gid = mode|0o770|unix.S_ISGID, int(*s.FSGroup)
	}
	return mode, gid
}

// memorySize is what a tmpfs may hold: its limit, but no more than its pod may have, nor than there is.
func memorySize(pod *corev1.Pod, e *corev1.EmptyDirVolumeSource) int64 {
	var info unix.Sysinfo_t
	size := int64(1) << 40
	if unix.Sysinfo(&info) == nil {
		size = int64(info.Totalram) * int64(info.Unit)
	}
	if limit, ok := memoryLimit(pod); ok {
		size = min(size, limit)
	}
	// Zero would be no limit for a tmpfs.
	if l := e.SizeLimit; l != nil && l.Value() > 0 {
		size = min(size, l.Value())
	}
	return size
}

// memoryLimit is the memory a pod may have, if all of its containers have a limit.
func memoryLimit(pod *corev1.Pod) (int64, bool) {
	if r := pod.Spec.Resources; r != nil {
		if q, ok := r.Limits[corev1.ResourceMemory]; ok && q.Value() > 0 {
			return q.Value(), true
		}
	}
	for _, c := range pod.Spec.Containers {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; !ok || q.Value() <= 0 {
			return 0, false
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; !ok || q.Value() <= 0 {
			return 0, false
		}
	}
	q, ok := resource.PodLimits(pod, resource.PodResourcesOptions{})[corev1.ResourceMemory]
	return q.Value(), ok && q.Value() > 0
}

// pageSize is that of the medium's name, or of the one kind of huge pages the pod's containers ask for.
func pageSize(pod *corev1.Pod, medium corev1.StorageMedium) (int64, error) {
	name := corev1.ResourceName(strings.ToLower(string(medium)))
	if medium == corev1.StorageMediumHugePages {
		name = ""
		for _, c := range append(append([]corev1.Container(nil), pod.Spec.InitContainers...), pod.Spec.Containers...) {
			for n := range c.Resources.Limits {
				if !strings.HasPrefix(string(n), corev1.ResourceHugePagesPrefix) {
					continue
				}
				if name != "" && name != n {
					return 0, fmt.Errorf("medium %s does not say which: containers ask for %s and %s", medium, name, n)
				}
				name = n
			}
		}
		if name == "" {
			return 0, fmt.Errorf("medium %s needs a container with a limit of huge pages", medium)
		}
	}
	_, text, _ := strings.Cut(string(name), "-")
	q, err := parseSize(text)
	if err != nil {
		return 0, fmt.Errorf("medium %s: %w", medium, err)
	}
	return q, nil
}
