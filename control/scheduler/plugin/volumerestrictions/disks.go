package volumerestrictions

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// exclusive says whether a volume is a disk that two pods of a node may not have at once, or only both for reading.
func exclusive(v *corev1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// hasExclusive says whether a pod has such a disk.
func hasExclusive(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if exclusive(&pod.Spec.Volumes[i]) {
			return true
		}
	}
	return false
}

// disksConflict says whether two pods may not be on one node because of a disk.
func disksConflict(a, b *corev1.Pod) bool {
	for i := range a.Spec.Volumes {
		v := &a.Spec.Volumes[i]
		if !exclusive(v) {
			continue
		}
		for j := range b.Spec.Volumes {
			if diskConflicts(v, &b.Spec.Volumes[j]) {
				return true
			}
		}
	}
	return false
}

func diskConflicts(a, b *corev1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x, y := a.GCEPersistentDisk, b.GCEPersistentDisk
		return x.PDName == y.PDName && !(x.ReadOnly && y.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		x, y := a.ISCSI, b.ISCSI
		return x.IQN == y.IQN && !(x.ReadOnly && y.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		x, y := a.RBD, b.RBD
		// Images of one name in clusters that have no monitor in common are two.
		common := slices.ContainsFunc(x.CephMonitors, func(m string) bool { return slices.Contains(y.CephMonitors, m) })
		return common && x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && !(x.ReadOnly && y.ReadOnly)
	}
	return false
}
