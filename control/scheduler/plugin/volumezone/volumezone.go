// Package volumezone keeps pods on nodes in the zones and regions that their volumes are labelled with.
package volumezone

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "VolumeZone"

const key fwk.StateKey = "PreFilter" + Name

// conflict is why a node is not taken, in Kubernetes' words.
const conflict = "node(s) had no available volume zone"

// between stands between the zones of a volume that is in several.
const between = "__"

// topologies are the labels that say where a volume is, and by which other one a node says the same.
func topologies() []topology {
	return []topology{
		{corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
		{corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
		{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone},
		{corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaRegion},
	}
}

type topology struct{ label, other string }

// place is where a volume is, by one label.
type place struct {
	topology

	values sets.Set[string]
}

// places are those of all volumes of a pod.
type places []place

// Clone is itself: it does not change.
func (p places) Clone() fwk.StateData { return p }

type volumeZone struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

// New makes the plugin.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	f := h.SharedInformerFactory()
	return &volumeZone{
		f.Core().V1().PersistentVolumeClaims().Lister(), f.Core().V1().PersistentVolumes().Lister(), f.Storage().V1().StorageClasses().Lister(),
	}, nil
}

// Name is Kubernetes' name of the plugin.
func (*volumeZone) Name() string { return Name }

// EventsToRegister has pods tried again when what they miss is there: a node elsewhere, a claim, a volume, a class.
func (z *volumeZone) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnNode(fwk.Add|fwk.UpdateNodeLabel, plugin.WhenNodeSuits(z.suits)),
		plugin.OnClaim(fwk.Add | fwk.Update),
		plugin.OnVolume(fwk.Add|fwk.Update, func(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
			return z.claims.PersistentVolumeClaims(namespace).Get(name)
		}),
		plugin.On(fwk.StorageClass, fwk.Add, z.classCame),
	}, nil
}

// suits says whether a node is where the volumes of a pod are, as far as they are known.
func (z *volumeZone) suits(pod *corev1.Pod, node *corev1.Node) bool {
	where, status := z.find(pod)
	return !status.IsSuccess() || where.take(node)
}

// classCame queues a pod that has a claim of the class.
func (z *volumeZone) classCame(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	_, is, err := plugin.Objects[*storagev1.StorageClass](before, after)
	if err != nil || is == nil {
		return fwk.Queue, err
	}
	for _, name := range plugin.Claims(pod) {
		claim, err := z.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
		if err != nil || volume.GetPersistentVolumeClaimClass(claim) == is.Name {
			return fwk.Queue, nil // a claim that is not known yet may be any
		}
	}
	return fwk.QueueSkip, nil
}

// SignPod says what of a pod counts here.
func (*volumeZone) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return plugin.WithoutClaims(pod)
}

// PreFilter finds where the volumes of the pod are. Those of most pods are nowhere in particular.
func (z *volumeZone) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	where, status := z.find(pod)
	if !status.IsSuccess() {
		return nil, status
	}
	if len(where) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(key, where)
	return nil, nil
}

// PreFilterExtensions are none: other pods do not matter.
func (*volumeZone) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (z *volumeZone) find(pod *corev1.Pod) (places, *fwk.Status) {
	var all places
	for i := range pod.Spec.Volumes {
		s := pod.Spec.Volumes[i].PersistentVolumeClaim
		if s == nil {
			continue
		}
		if s.ClaimName == "" {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "PersistentVolumeClaim had no name")
		}
		v, status := z.volumeOf(pod.Namespace, s.ClaimName)
		if !status.IsSuccess() {
			return nil, status
		}
		if v != nil {
			all = append(all, placesOf(v)...)
		}
	}
	return all, nil
}

// volumeOf is the volume of a claim; nil: there is none as long as no pod has a node.
func (z *volumeZone) volumeOf(namespace, name string) (*corev1.PersistentVolume, *fwk.Status) {
	claim, err := z.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, missing(err)
	}
	if claim.Spec.VolumeName != "" {
		v, err := z.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			return nil, missing(err)
		}
		return v, nil
	}
	class := volume.GetPersistentVolumeClaimClass(claim)
	if class == "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "PersistentVolumeClaim had no pv name and storageClass name")
	}
	c, err := z.classes.Get(class)
	switch {
	case err != nil:
		return nil, missing(err)
	case c.VolumeBindingMode == nil:
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", class))
	case *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
		return nil, nil
	}
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "PersistentVolume had no name")
}

// missing is the status of what is not there, which only its coming changes.
func missing(err error) *fwk.Status {
	if apierrors.IsNotFound(err) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	return fwk.AsStatus(fmt.Errorf("find volume: %w", err))
}

func placesOf(v *corev1.PersistentVolume) places {
	var all places
	for _, t := range topologies() {
		value, labelled := v.Labels[t.label]
		if !labelled {
			continue
		}
		values := sets.New[string]()
		for part := range strings.SplitSeq(value, between) {
			values.Insert(strings.TrimSpace(part))
		}
		if values.Has("") {
			continue // a label that names no zone says nothing
		}
		all = append(all, place{t, values})
	}
	return all
}

// take says whether a node is in all places. One that has no label of any topology is in a cluster of one zone.
func (p places) take(node *corev1.Node) bool {
	labelled := false
	for _, t := range topologies() {
		_, has := node.Labels[t.label]
		labelled = labelled || has
	}
	if !labelled {
		return true
	}
	for _, one := range p {
		value, has := node.Labels[one.label]
		if !has {
			value, has = node.Labels[one.other]
		}
		if !has || !one.values.Has(value) {
			return false
		}
	}
	return true
}

// Filter takes nodes that are where the volumes are.
func (*volumeZone) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	where, err := plugin.Read[places](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if where.take(info.Node()) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, conflict)
}
