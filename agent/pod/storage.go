package pod

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// storage is what a pod has on the node's disk, in bytes: what its limits of ephemeral-storage are for.
type storage struct {
	containers map[string]int64 // what each has written into its file system, and its logs
	volumes    int64
}

// storageLimit is what the containers of a pod may have on the disk together; false when none of them has a limit. One without a limit
// counts for the others, as under kubelet.
func storageLimit(pod *corev1.Pod) (int64, bool) {
	limit, ok := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return limit.Value(), ok && limit.Sign() > 0
}

func limitsStorage(pod *corev1.Pod) bool {
	_, ok := storageLimit(pod)
	return ok
}

// storage counts what a pod has. The runtime counts its containers' layers.
func (l *limits) storage(ctx context.Context, pod *corev1.Pod) (storage, error) {
	out := storage{containers: map[string]int64{}}
	r, err := l.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{spec.PodUIDLabel: string(pod.UID)}},
	})
	if err != nil {
		return out, fmt.Errorf("list stats of containers: %w", err)
	}
	attempts := map[string]uint32{}
	for _, s := range r.GetStats() {
		layer := s.GetWritableLayer()
		if dir := layer.GetFsId().GetMountpoint(); dir != "" {
			if _, ok := l.free[dir]; !ok {
				l.free[dir] = unix.Statfs_t{} // it is looked at from now on
			}
		}
		// What is left of earlier attempts is the runtime's to remove, not the pod's to answer for.
		m := s.GetAttributes().GetMetadata()
		if before, ok := attempts[m.GetName()]; !ok || m.GetAttempt() >= before {
			attempts[m.GetName()] = m.GetAttempt()
			out.containers[m.GetName()] = int64(layer.GetUsedBytes().GetValue())
		}
	}
	logs := spec.LogDirectory(l.cfg.LogDir, pod)
	for name := range out.containers {
		if used, ok := l.cfg.DiskUse(ctx, filepath.Join(logs, name)); ok {
			out.containers[name] += used
		}
	}
	for _, v := range diskVolumes(pod) {
		if used, ok := l.volumeUse(ctx, pod, v.Name); ok {
			out.volumes += used
		}
	}
	return out, nil
}

// exceeded says which limit is exceeded, the pod's first; "" when none is.
func (u storage) exceeded(pod *corev1.Pod) string {
	sum := u.volumes
	for _, used := range u.containers {
		sum += used
	}
	if limit, ok := storageLimit(pod); ok && sum > limit {
		text := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", text.String())
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit := c.Resources.Limits.StorageEphemeral(); limit.Sign() > 0 && u.containers[c.Name] > limit.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return ""
}
