package agent

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/spec"
)

// Why a pod cannot have a volume now, in kubelet's words where it has some.
const (
	reasonVolumeLimit = "VolumeAttachmentLimitExceeded"
	reasonVolumeInUse = "VolumeInUse"
)

// csiVolume is a volume that a pod wants of a driver.
type csiVolume struct{ driver, handle string }

// given is which volumes the pods have that were taken in.
type given struct {
	mu   sync.Mutex
	pods map[types.UID]*givenTo
}

type givenTo struct {
	name    string               // namespace/name of the pod
	volumes map[csiVolume]string // the claims of each
}

var _ pod.NodeResource = (*csiVolumes)(nil)

// Name implements [pod.NodeResource].
func (*csiVolumes) Name() string { return "csi" }

// Concerns says whether the pod may have a volume of a driver: which one a claim has depends on objects that may come
// later.
func (v *csiVolumes) Concerns(p *corev1.Pod) bool {
	for i := range p.Spec.Volumes {
		if s := &p.Spec.Volumes[i]; s.CSI != nil || s.PersistentVolumeClaim != nil || s.Ephemeral != nil {
			return true
		}
	}
	return false
}

// Admit holds the pod to its drivers' limits of volumes on the node, and to ReadWriteOncePod.
// What is not known of its volumes yet is found out when they are made.
func (v *csiVolumes) Admit(p *corev1.Pod, ran bool) error {
	if !v.Concerns(p) {
		return nil
	}
	wanted := &givenTo{name: p.Namespace + "/" + p.Name, volumes: map[csiVolume]string{}}
	alone := map[csiVolume]bool{}
	for i := range p.Spec.Volumes {
		one := &p.Spec.Volumes[i]
		switch pv := v.bound(p, one); {
		case one.CSI != nil: // its handle is made of the pod's uid and its name
			wanted.volumes[csiVolume{one.CSI.Driver, string(p.UID) + "/" + one.Name}] = one.Name
		case pv != nil && pv.Spec.CSI != nil:
			key := csiVolume{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle}
			wanted.volumes[key] = one.Name
			alone[key] = len(pv.Spec.AccessModes) > 0 && pv.Spec.AccessModes[0] == corev1.ReadWriteOncePod
		}
	}
	v.given.mu.Lock()
	defer v.given.mu.Unlock()
	if !ran {
		if err := v.refuse(p, wanted, alone); err != nil {
			return err
		}
	}
	if v.given.pods == nil {
		v.given.pods = map[types.UID]*givenTo{}
	}
	v.given.pods[p.UID] = wanted
	return nil
}

// refuse says why a pod cannot have its volumes; the lock is held.
func (v *csiVolumes) refuse(p *corev1.Pod, wanted *givenTo, alone map[csiVolume]bool) error {
	here := map[string]map[csiVolume]bool{} // by driver
	for uid, g := range v.given.pods {
		for key := range g.volumes {
			if uid != p.UID && alone[key] {
				return &pinning.Refusal{Reason: reasonVolumeInUse, Message: fmt.Sprintf(
					"volume %q: its access mode is ReadWriteOncePod, and pod %s has it", wanted.volumes[key], g.name)}
			}
			if here[key.driver] == nil {
				here[key.driver] = map[csiVolume]bool{}
			}
			here[key.driver][key] = true
		}
	}
	for key, name := range wanted.volumes {
		d, err := v.drivers.Get(key.driver)
		if err != nil || d.MaxVolumes == 0 || here[key.driver][key] {
			continue // one that is not there is waited for
		}
		n := len(here[key.driver])
		if most := d.MaxVolumes; int64(n) >= most {
			return &pinning.Refusal{Reason: reasonVolumeLimit, Message: fmt.Sprintf(
				"volume %q: CSI driver %s can have %d volumes on this node, and pods have %d", name, key.driver, most, n)}
		}
		if here[key.driver] == nil {
			here[key.driver] = map[csiVolume]bool{}
		}
		here[key.driver][key] = true
	}
	return nil
}

// bound is the PersistentVolume of a volume of a pod, as far as it is known.
func (v *csiVolumes) bound(p *corev1.Pod, one *corev1.Volume) *corev1.PersistentVolume {
	var pv *corev1.PersistentVolume
	var err error
	switch {
	case one.PersistentVolumeClaim != nil:
		pv, err = v.objects.Of(desired.OriginOf(p)).Volume(p.Namespace, one.PersistentVolumeClaim.ClaimName)
	case one.Ephemeral != nil && desired.OriginOf(p).Cluster():
		pv, err = v.objects.Of(desired.API).Made(p, one.Name)
	case one.Ephemeral != nil && v.boundName != nil:
		name := v.boundName(p.UID, one.Name)
		if name == "" {
			return nil
		}
		pv, err = v.objects.Of(desired.OriginOf(p)).Bound(object.ClaimOf(p, one), name)
	}
	if err != nil {
		return nil
	}
	return pv
}

// Prepare implements [pod.NodeResource]: volumes are made with those of other kinds.
func (*csiVolumes) Prepare(context.Context, *corev1.Pod) error { return nil }

// Inject implements [pod.NodeResource].
func (*csiVolumes) Inject(context.Context, *corev1.Pod, *corev1.Container, *spec.Injection) error {
	return nil
}

// Health implements [pod.NodeResource].
func (*csiVolumes) Health(*corev1.Pod) map[string][]corev1.ResourceStatus { return nil }

// Changes implements [pod.NodeResource].
func (v *csiVolumes) Changes() (changed, freed <-chan struct{}) { return v.changed, v.freed }

// Release implements [pod.NodeResource].
func (v *csiVolumes) Release(_ context.Context, uid types.UID) error {
	v.given.mu.Lock()
	defer v.given.mu.Unlock()
	delete(v.given.pods, uid)
	return nil
}

// Synced implements [pod.NodeResource].
func (v *csiVolumes) Synced(here func(types.UID) bool) error {
	v.given.mu.Lock()
	defer v.given.mu.Unlock()
	for uid := range v.given.pods {
		if !here(uid) {
			delete(v.given.pods, uid)
		}
	}
	return nil
}
