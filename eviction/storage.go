package eviction

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// storage is what a pod has on the node's disk, in bytes: what its limits of ephemeral-storage are for.
type storage struct {
	containers map[string]int64 // what each has written into its file system, and its logs
	volumes    int64
}

// storageLimit is what the containers of a pod may have on the disk together; false when none of them has a limit. One
// without a limit counts for the others, as under kubelet.
func storageLimit(pod *corev1.Pod) (int64, bool) {
	limit, ok := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return limit.Value(), ok && limit.Sign() > 0
}

func limitsStorage(pod *corev1.Pod) bool {
	_, ok := storageLimit(pod)
	return ok
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

// limitedVolumes are the emptyDirs on the disk that have a limit.
func limitedVolumes(pod *corev1.Pod) []*corev1.Volume {
	var out []*corev1.Volume
	for _, v := range diskVolumes(pod) {
		if limit := v.EmptyDir.SizeLimit; limit != nil && limit.Sign() > 0 {
			out = append(out, v)
		}
	}
	return out
}

// diskVolumes are the emptyDirs on the disk.
func diskVolumes(pod *corev1.Pod) []*corev1.Volume {
	var out []*corev1.Volume
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if e := v.EmptyDir; e != nil && e.Medium == corev1.StorageMediumDefault {
			out = append(out, v)
		}
	}
	return out
}
