// Package volumebinding keeps pods on nodes that can have their volumes, and has claims that wait for a pod get theirs
// for the node that it is given.
package volumebinding

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "VolumeBinding"

const key fwk.StateKey = Name

// defaultTimeout is how long a pod waits for its volumes once it was given a node.
const defaultTimeout = 10 * time.Minute

// volumeBinding is the plugin.
type volumeBinding struct {
	client     kubernetes.Interface
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	nodes      corelisters.NodeLister
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	capacities storagelisters.CSIStorageCapacityLister
	timeout    time.Duration
	assumed    assumed
	changes    changes
}

// wanted are the volumes of a pod, and what was found for those that have to be bound, node by node.
type wanted struct {
	bound []*corev1.PersistentVolume // nil for one that is not there
	open  []*corev1.PersistentVolumeClaim
	// volumes are those that there are by class, if any claim is open: there may be thousands, of which each node is
	// asked about those of the classes that it is about.
	volumes map[string][]*corev1.PersistentVolume

	mu    sync.Mutex
	found map[string]choice
}

// choice is what a pod's claims would get on a node.
type choice struct {
	bind      []pair
	provision []*corev1.PersistentVolumeClaim
}

type pair struct {
	volume *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
}

// Clone is itself: what is found for a node does not depend on what pods there are.
func (w *wanted) Clone() fwk.StateData { return w }

// New makes the plugin.
func New(_ context.Context, o runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args, err := plugin.Args[configv1.VolumeBindingArgs](o)
	if err != nil {
		return nil, err
	}
	timeout := defaultTimeout
	if s := args.BindTimeoutSeconds; s != nil {
		if *s < 0 {
			return nil, fmt.Errorf("read arguments: bindTimeoutSeconds is %d, and must not be negative", *s)
		}
		timeout = time.Duration(*s) * time.Second
	}
	core, storage := h.SharedInformerFactory().Core().V1(), h.SharedInformerFactory().Storage().V1()
	v := &volumeBinding{
		client: h.ClientSet(), claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		nodes: core.Nodes().Lister(), classes: storage.StorageClasses().Lister(), drivers: storage.CSIDrivers().Lister(),
		capacities: storage.CSIStorageCapacities().Lister(), timeout: timeout, assumed: newAssumed(),
	}
	if _, err := core.PersistentVolumeClaims().Informer().AddEventHandler(v.changes.handler()); err != nil {
		return nil, fmt.Errorf("watch claims: %w", err)
	}
	return v, nil
}

// Name is Kubernetes' name of the plugin.
func (*volumeBinding) Name() string { return Name }

// EventsToRegister has pods tried again when their claims change, a volume comes or changes that one of these may have,
// or classes, drivers, storage or nodes do.
func (v *volumeBinding) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	all := []fwk.ClusterEventWithHint{
		plugin.OnNode(fwk.Add|fwk.UpdateNodeLabel, nil),
		plugin.OnClaim(fwk.Add | fwk.Update),
		plugin.OnVolume(fwk.Add|fwk.Update, func(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
			return v.claims.PersistentVolumeClaims(namespace).Get(name)
		}),
	}
	for _, r := range []fwk.EventResource{fwk.StorageClass, fwk.CSINode, fwk.CSIDriver, fwk.CSIStorageCapacity} {
		all = append(all, plugin.On(r, fwk.Add|fwk.Update, nil))
	}
	return all, nil
}

// SignPod says what of a pod counts here.
func (*volumeBinding) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return plugin.WithoutClaims(pod)
}

// PreFilter finds the pod's claims; most pods have none.
func (v *volumeBinding) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	w := &wanted{found: map[string]choice{}}
	some := false
	for i := range pod.Spec.Volumes {
		s := &pod.Spec.Volumes[i]
		if s.PersistentVolumeClaim == nil && s.Ephemeral == nil {
			continue
		}
		some = true
		claim, err := v.claimOf(pod, s)
		if err != nil {
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
		}
		switch {
		case isBound(claim):
			found, _ := v.volumes.Get(claim.Spec.VolumeName)
			w.bound = append(w.bound, found)
		case claim.Spec.VolumeName == "" && v.waits(claim):
			w.open = append(w.open, claim)
		default:
			return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "pod has unbound immediate PersistentVolumeClaims")
		}
	}
	if !some {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if len(w.open) > 0 {
		var err error
		if w.volumes, err = v.assumed.all(v.volumes); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	state.Write(key, w)
	return nil, nil
}

// claimOf is the claim of a pod's volume, or why there is none that it may have.
func (v *volumeBinding) claimOf(pod *corev1.Pod, s *corev1.Volume) (*corev1.PersistentVolumeClaim, error) {
	name := ""
	if s.PersistentVolumeClaim != nil {
		name = s.PersistentVolumeClaim.ClaimName
	} else {
		name = ephemeral.VolumeClaimName(pod, s)
	}
	claim, err := v.assumed.claim(v.claims, pod.Namespace, name)
	if err != nil {
		if s.Ephemeral != nil {
			return nil, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		}
		return nil, err
	}
	if claim.Status.Phase == corev1.ClaimLost {
		return nil, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
	}
	if claim.DeletionTimestamp != nil {
		return nil, fmt.Errorf("persistentvolumeclaim %q is being deleted", name)
	}
	if s.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, err
		}
	}
	return claim, nil
}

func isBound(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName != "" && metav1.HasAnnotation(c.ObjectMeta, volume.AnnBindCompleted)
}

// waits says whether a claim's class has it wait for a pod.
func (v *volumeBinding) waits(c *corev1.PersistentVolumeClaim) bool {
	class, err := v.classes.Get(volume.GetPersistentVolumeClaimClass(c))
	return err == nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// PreFilterExtensions are none: other pods do not matter.
func (*volumeBinding) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter takes nodes that can have all volumes, and notes which they would be.
func (v *volumeBinding) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	found, reasons, err := v.choose(w, info.Node())
	if err != nil {
		return fwk.AsStatus(err)
	}
	if len(reasons) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found[info.Node().Name] = found
	return nil
}

// Reserve keeps the volumes that were found from being found for others.
func (v *volumeBinding) Reserve(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node string) *fwk.Status {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return nil // the pod has no claims
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := v.assumed.take(w.found[node], node); err != nil {
		return fwk.AsStatus(err)
	}
	return nil
}

// Unreserve gives back what Reserve has taken. What was written by then stays written: the binder goes on with it.
func (v *volumeBinding) Unreserve(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node string) {
	w, err := plugin.Read[*wanted](state, key)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	v.assumed.giveBack(w.found[node])
}
