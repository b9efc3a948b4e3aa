package pod

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/eviction/limit"
	"github.com/berth-node/berth/internal/filetree"
)

var (
	_ limit.Pods  = (*Evictor)(nil)
	_ limit.Usage = (*Evictor)(nil)
)

// Here implements [limit.Pods]. One that was ended is held to its limits again when it returns.
func (e *Evictor) Here() []*corev1.Pod {
	var out []*corev1.Pod
	for _, w := range e.node.registry.all() {
		if w.told.evictionDone.Load() == nil && !w.told.ended() {
			out = append(out, w.share.Pod)
		}
	}
	return out
}

// Came implements [limit.Pods].
func (e *Evictor) Came() <-chan struct{} { return e.node.registry.came }

// Volume implements [limit.Usage]: by the file system's word where that counts the emptyDir.
func (e *Evictor) Volume(ctx context.Context, pod *corev1.Pod, name string) (int64, bool) {
	s, ok := e.emptyDir(ctx, pod, name)
	return s.Bytes, ok
}

// emptyDir is what an emptyDir on the disk takes; false when that cannot be counted. A pod without users of its own can
// give its files to another project than the volume's, so that it takes more than the file system says: its are looked
// at one by one.
func (e *Evictor) emptyDir(ctx context.Context, pod *corev1.Pod, name string) (Space, bool) {
	root := e.node.cfg.RootDir
	if spec.OwnUsers(pod) {
		if used, ok := volume.Charged(root, pod.UID, name); ok {
			return Space{used.Bytes, used.Inodes}, true
		}
	}
	return files(ctx, volume.EmptyDir(root, pod.UID, name))
}

// Containers implements [limit.Usage]. The runtime counts the containers' layers.
func (e *Evictor) Containers(
	ctx context.Context, pod *corev1.Pod,
) (use map[string]int64, layers []string, err error) {
	r, err := e.node.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{spec.PodUIDLabel: string(pod.UID)}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list stats of containers: %w", err)
	}
	use = map[string]int64{}
	attempts := map[string]uint32{}
	for _, s := range r.GetStats() {
		layer := s.GetWritableLayer()
		if dir := layer.GetFsId().GetMountpoint(); dir != "" {
			layers = append(layers, dir)
		}
		// What is left of earlier attempts is the runtime's to remove, not the pod's to answer for.
		m := s.GetAttributes().GetMetadata()
		if before, ok := attempts[m.GetName()]; !ok || m.GetAttempt() >= before {
			attempts[m.GetName()] = m.GetAttempt()
			use[m.GetName()] = int64(layer.GetUsedBytes().GetValue())
		}
	}
	for name := range use {
		use[name] += e.beside(ctx, pod, name).Bytes
	}
	use[limit.Shared] = shared(e.node.cfg.RootDir, pod).Bytes
	return use, layers, nil
}

// beside is what a container has written that is neither in its layer nor in a volume: its logs, and what it has put
// into the file of its termination message, which is as long as it likes until the message is read.
func (e *Evictor) beside(ctx context.Context, pod *corev1.Pod, container string) Space {
	cfg := &e.node.cfg
	sum, _ := files(ctx, filepath.Join(spec.LogDirectory(cfg.LogDir, pod), container))
	messages, _ := files(ctx, filepath.Dir(spec.MessageFile(cfg.RootDir, string(pod.UID), container, 0)))
	sum.add(messages)
	return sum
}

// shared is what the pod's containers have written into the file that each of them has as its /etc/hosts.
func shared(rootDir string, pod *corev1.Pod) Space {
	var st unix.Stat_t
	if unix.Lstat(spec.HostsFile(rootDir, string(pod.UID)), &st) != nil {
		return Space{}
	}
	return Space{Bytes: st.Blocks * 512, Inodes: 1}
}

// files counts what is below a directory. What could be counted of it is used in any case: a limit is not lifted by a
// directory that cannot be read, or by more files than there is time for. false when nothing could.
func files(ctx context.Context, dir string) (Space, bool) {
	u, err := filetree.Count(ctx, dir) // it returns what it could count
	return Space{int64(u.Bytes), int64(u.Inodes)}, err == nil || u.Inodes > 0
}
