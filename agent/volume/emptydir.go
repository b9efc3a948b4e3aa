package volume

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
)

// emptyDirPlugin is kubelet's name of what makes emptyDirs.
const emptyDirPlugin = "empty-dir"

// emptyDirMode lets every user of every container write, whatever user that is.
const emptyDirMode = 0o777

// EmptyDir is where the files of a pod's emptyDir are.
func EmptyDir(root string, uid types.UID, name string) string {
	return filepath.Join(kind.PluginDir(filepath.Join(root, "pods", string(uid)), emptyDirPlugin), name)
}

// emptyDirs are directories of a pod's own, on the disk or in memory.
type emptyDirs struct {
	quotas  bool // the file system is to hold them to their limits, where it can
	log     *slog.Logger
	project sync.Mutex // held while a directory gets a project: no two get the same
}

// Traits says that what is in such a directory is the pod's.
func (*emptyDirs) Traits() kind.Traits { return kind.Traits{Plugin: emptyDirPlugin, PodsOwn: true} }

// Makes says whether the source is an emptyDir.
func (*emptyDirs) Makes(s kind.Source) bool { return s.Pod.EmptyDir != nil }

// Setup makes the directory.
func (k *emptyDirs) Setup(_ context.Context, v *kind.Volume) (kind.Made, error) {
	path := v.Path(emptyDirPlugin)
	return kind.Made{Path: path}, k.setup(path, v)
}

func (k *emptyDirs) setup(path string, v *kind.Volume) error {
	if err := k.makeOwned(path, v); err != nil {
		return err
	}
	source, pod := v.Source.Pod.EmptyDir, v.Pod
	var fsType, data string
	switch medium := source.Medium; {
	case medium == corev1.StorageMediumDefault:
		return nil
	case medium == corev1.StorageMediumMemory:
		fsType, data = "tmpfs", fmt.Sprintf("size=%d", memorySize(pod, source))
	default:
		size, err := pageSize(pod, medium)
		if err != nil {
			return err
		}
		fsType, data = "hugetlbfs", fmt.Sprintf("pagesize=%d", size)
		if l := source.SizeLimit; l != nil && l.Value() > 0 {
			data += fmt.Sprintf(",size=%d", l.Value())
		}
	}
	mounted, err := mount.Is(path)
	if err != nil || mounted {
		return err
	}
	mode, gid := modeAndGroup(pod, source)
	data += fmt.Sprintf(",mode=%o", mode)
	if gid >= 0 {
		data += fmt.Sprintf(",gid=%d", gid)
	}
	return mount.Memory(fsType, path, data)
}

// makeOwned makes a directory with its owner and mode in one step: it has its name only once it is complete, and one
// that exists is left alone, since the pod may have changed it.
func (k *emptyDirs) makeOwned(path string, v *kind.Volume) error {
	parent, source, pod := filepath.Dir(path), v.Source.Pod.EmptyDir, v.Pod
	if err := os.MkdirAll(parent, 0o750); err != nil {
		return err
	}
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
	mode, gid := modeAndGroup(pod, source)
	if gid >= 0 {
		if err := os.Lchown(staged, -1, gid); err != nil {
			return err
		}
	}
	if most, ok := k.quotaOf(pod, source); ok {
		// Without it what is used is counted, once in a while.
		if err := k.limitDir(staged, pod.UID, v.Name, most); err != nil {
			k.log.Warn("the file system does not limit a volume", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "volume", v.Name, "error", err)
		}
	}
	// After the owner, whose change would clear the setgid bit, and by chmod, which knows no umask.
	if err := unix.Chmod(staged, mode); err != nil {
		return fmt.Errorf("chmod %s: %w", staged, err)
	}
	return os.Rename(staged, path)
}

// quotaOf is what the file system lets an emptyDir have, in bytes, and whether it is to count it at all. One without a
// limit is counted, if it cannot get away with that: only who has no user namespace of its own gives files away.
func (k *emptyDirs) quotaOf(pod *corev1.Pod, e *corev1.EmptyDirVolumeSource) (most int64, ok bool) {
	if !k.quotas || e.Medium != corev1.StorageMediumDefault {
		return 0, false
	}
	if l := e.SizeLimit; l != nil && l.Sign() > 0 {
		return l.Value(), true
	}
	return 0, pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers
}

// modeAndGroup is the mode and group of an emptyDir. With setgid the files a pod writes get the pod's group too.
func modeAndGroup(pod *corev1.Pod, e *corev1.EmptyDirVolumeSource) (mode uint32, gid int) {
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
