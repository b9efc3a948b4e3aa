package expand

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// verdict is what is to be done about a claim and its volume.
type verdict struct {
	bytes int64 // that the volume is to have on the node; 0: nothing is to be done
	mark  bool  // the claim says before that the node is at it
	tell  bool  // the claim says after that it is done
}

// notRequired is an annotation of claims whose volume has nothing to be expanded on the node, by its controller.
const notRequired = "volume.kubernetes.io/node-expansion-not-required"

// judge says what is to be done for a claim whose volume has so many bytes on the node, by kubelet's rule: the
// controller of the driver has had its turn when the PersistentVolume is larger than the claim says that it is.
func judge(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, has int64) verdict {
	to := bytesOf(v.Spec.Capacity)
	// A resizer that knows how to recover from failures says how much it has allocated, and when it is the node's turn.
	// One that does not leaves both out.
	allocated, recovers := c.Status.AllocatedResources[corev1.ResourceStorage]
	switch c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if recovers && to < allocated.Value() || !recovers && to <= bytesOf(c.Status.Capacity) {
			return verdict{} // it is the volume as it was before, which is read apart from the claim
		}
		return verdict{bytes: to, mark: has < to, tell: true}
	case "":
		if bytesOf(c.Status.Capacity) >= to { // as another node has said
			if _, none := c.Annotations[notRequired]; has >= to || none {
				return verdict{}
			}
			return verdict{bytes: to}
		}
		if !recovers {
			return verdict{bytes: to, tell: true}
		}
	}
	return verdict{} // it is the controller's turn
}

// hasHere is how many bytes a volume has on the node: what is known of that, else what its claim says.
func hasHere(size int64, c *corev1.PersistentVolumeClaim) int64 {
	return cmp.Or(size, bytesOf(c.Status.Capacity))
}

func bytesOf(l corev1.ResourceList) int64 { return l.Storage().Value() }

// Sizes are how many bytes the volume of a claim has when a pod gets it, and how many it is to have then; 0: as many.
func Sizes(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) (has, due int64) {
	has = bytesOf(c.Status.Capacity)
	return has, judge(c, v, has).bytes
}
