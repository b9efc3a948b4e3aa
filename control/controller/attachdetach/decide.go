package attachdetach

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

const (
	// managedBy is the annotation of nodes that leave attaching to this controller.
	managedBy = "volumes.kubernetes.io/controller-managed-attach-detach"
	// outOfService is the taint by which people say that nothing runs on a node any more.
	outOfService = corev1.TaintNodeOutOfService
	// patience is how long a node that is not healthy has to unmount a volume.
	patience = 6 * time.Minute
)

// attachmentName is the name of the attachment of a volume to a node, which the node knows it by, too.
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// uniqueName is how a node's status calls a volume.
func uniqueName(v *corev1.PersistentVolume) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + v.Spec.CSI.Driver + "^" + v.Spec.CSI.VolumeHandle)
}

// shared says whether a volume may be attached to several nodes.
func shared(v *corev1.PersistentVolume) bool {
	return len(v.Spec.AccessModes) == 0 || slices.Contains(v.Spec.AccessModes, corev1.ReadWriteMany) ||
		slices.Contains(v.Spec.AccessModes, corev1.ReadOnlyMany)
}

// hasEnded says whether a pod needs its volumes no longer.
func hasEnded(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return true
	}
	if p.DeletionTimestamp == nil {
		return false
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Terminated == nil && s.State.Waiting == nil {
			return false
		}
	}
	// A pod that has said nothing yet may be about to start.
	return len(p.Status.ContainerStatuses) > 0
}

// wish is a volume that pods of a node use.
type wish struct {
	volume *corev1.PersistentVolume
	pods   []*corev1.Pod
}

// state is what is known of one node: nil if there is none. All by the names of attachments.
type state struct {
	name    string
	node    *corev1.Node
	wanted  map[string]wish
	present map[string]*storagev1.VolumeAttachment
	volumes map[string]*corev1.PersistentVolume // of those that are present
	// elsewhere are the other nodes that a volume is attached to, or about to be, or still.
	elsewhere map[string][]string
}

// plan is what is to be done for a node.
type plan struct {
	attach []string
	// refused are wanted by the node and attached to another one, which only one may have.
	refused []string
	// detach are no longer wanted, and not in use as far as is known; force are those whose use does not count.
	detach, force []string
	// attached is what the node's status is to say.
	attached []corev1.AttachedVolume
	// again is when time alone is a reason to look again.
	again time.Duration
}

// decide plans for a node. unwanted says since when an attachment is not wanted.
func decide(s state, unwanted func(string) time.Time, now time.Time) plan {
	var p plan
	for _, name := range sorted(s.wanted) {
		if s.present[name] != nil {
			continue
		}
		if !shared(s.wanted[name].volume) && len(s.elsewhere[name]) > 0 {
			p.refused = append(p.refused, name)
		} else {
			p.attach = append(p.attach, name)
		}
	}
	for _, name := range sorted(s.present) {
		a, v := s.present[name], s.volumes[name]
		_, wanted := s.wanted[name]
		leaving := a.DeletionTimestamp != nil
		if !wanted && !leaving {
			force, left := s.forced(unwanted(name), now)
			switch {
			case force:
				p.force = append(p.force, name)
				leaving = true
			case s.inUse(v):
				if left > 0 && (p.again == 0 || left < p.again) {
					p.again = left
				}
			default:
				p.detach = append(p.detach, name)
				leaving = true
			}
		}
		if a.Status.Attached && !leaving {
			p.attached = append(p.attached, corev1.AttachedVolume{Name: uniqueName(v)})
		}
	}
	slices.SortFunc(p.attached, func(a, b corev1.AttachedVolume) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return p
}

// inUse says whether a node has a volume mounted. Of a node that is gone nobody knows.
func (s state) inUse(v *corev1.PersistentVolume) bool {
	return s.node == nil || slices.Contains(s.node.Status.VolumesInUse, uniqueName(v))
}

// forced says whether a volume is detached from a node whatever that says, or how long until it may be.
func (s state) forced(since, now time.Time) (bool, time.Duration) {
	if s.node != nil {
		if slices.ContainsFunc(s.node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == outOfService }) {
			return true, 0
		}
		if slices.ContainsFunc(s.node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return false, 0
		}
	}
	left := since.Add(patience).Sub(now)
	return left <= 0, left
}

func sorted[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
