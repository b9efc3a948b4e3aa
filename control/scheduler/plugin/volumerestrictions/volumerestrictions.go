// Package volumerestrictions keeps pods off nodes, or off all of them, whose volumes another pod has that has to have
// them alone.
package volumerestrictions

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "VolumeRestrictions"

const key fwk.StateKey = "PreFilter" + Name

// Why a node is not taken, in Kubernetes' words.
const (
	diskConflict  = "node(s) had no available disk"
	claimConflict = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)

type restrictions struct {
	claims corelisters.PersistentVolumeClaimLister
	handle fwk.Handle
}

// needs are what of a pod's volumes others may not have.
type needs struct {
	disks     bool
	claims    sets.Set[string] // that one pod alone may have
	conflicts int              // how many of these another pod has
}

// Clone has its own number of conflicts: preemption looks what it comes to without some pods.
func (n *needs) Clone() fwk.StateData {
	c := *n
	return &c
}

// New makes the plugin.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &restrictions{h.SharedInformerFactory().Core().V1().PersistentVolumeClaims().Lister(), h}, nil
}

// Name is Kubernetes' name of the plugin.
func (*restrictions) Name() string { return Name }

// EventsToRegister has pods tried again when who has a volume is gone, and when a claim comes that was not there.
func (*restrictions) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnAssigned(fwk.Delete, freed),
		plugin.OnClaim(fwk.Add),
	}, nil
}

// freed queues a pod for the end of one that had a volume of its.
func freed(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, _, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil || was == nil {
		return fwk.Queue, err
	}
	if disksConflict(pod, was) || sharesClaim(pod, was) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

func sharesClaim(a, b *corev1.Pod) bool {
	for v, name := range plugin.Claims(a) {
		if v.PersistentVolumeClaim != nil && plugin.HasClaim(b, a.Namespace, name) {
			return true
		}
	}
	return false
}

// SignPod says what of a pod counts here.
func (*restrictions) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if !hasExclusive(pod) {
		return plugin.WithoutClaims(pod)
	}
	if _, status := plugin.WithoutClaims(pod); !status.IsSuccess() {
		return nil, status
	}
	return []fwk.SignFragment{{Key: fwk.VolumesSignerName, Value: fwk.VolumesSigner(pod)}}, nil
}

// PreFilter finds the volumes that the pod has to have alone, and who has them.
func (r *restrictions) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	n := &needs{disks: hasExclusive(pod), claims: sets.New[string]()}
	for i := range pod.Spec.Volumes {
		s := pod.Spec.Volumes[i].PersistentVolumeClaim
		if s == nil {
			continue
		}
		claim, err := r.claims.PersistentVolumeClaims(pod.Namespace).Get(s.ClaimName)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
		case err != nil:
			return nil, fwk.AsStatus(fmt.Errorf("find claim %s/%s: %w", pod.Namespace, s.ClaimName, err))
		case slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod):
			n.claims.Insert(s.ClaimName)
		}
	}
	if !n.disks && len(n.claims) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if len(n.claims) > 0 {
		used := r.handle.SnapshotSharedLister().StorageInfos()
		for name := range n.claims {
			if used.IsPVCUsedByPods(pod.Namespace + "/" + name) {
				n.conflicts++
			}
		}
	}
	state.Write(key, n)
	return nil, nil
}

// PreFilterExtensions count pods that come and go for trial.
func (r *restrictions) PreFilterExtensions() fwk.PreFilterExtensions { return r }

// AddPod implements [fwk.PreFilterExtensions].
func (r *restrictions) AddPod(_ context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	return count(state, pod, other.GetPod(), 1)
}

// RemovePod implements [fwk.PreFilterExtensions].
func (r *restrictions) RemovePod(_ context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	return count(state, pod, other.GetPod(), -1)
}

func count(state fwk.CycleState, pod, other *corev1.Pod, sign int) *fwk.Status {
	n, err := plugin.Read[*needs](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	for name := range n.claims {
		if plugin.HasClaim(other, pod.Namespace, name) {
			n.conflicts += sign
		}
	}
	return nil
}

// Filter refuses a node that has a pod with a disk of this one's, and all while another pod has a claim of its.
func (*restrictions) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	n, err := plugin.Read[*needs](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if n.disks {
		for _, other := range info.GetPods() {
			if disksConflict(pod, other.GetPod()) {
				return fwk.NewStatus(fwk.Unschedulable, diskConflict)
			}
		}
	}
	if n.conflicts > 0 {
		return fwk.NewStatus(fwk.Unschedulable, claimConflict)
	}
	return nil
}
