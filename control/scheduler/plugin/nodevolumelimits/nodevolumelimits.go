// Package nodevolumelimits keeps pods off nodes that would have more volumes of a driver than it can attach there, and
// off nodes without a driver that wants that.
package nodevolumelimits

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// Name is the plugin's in configurations.
const Name = "NodeVolumeLimits"

const key fwk.StateKey = "PreFilter" + Name

// Why a node is not taken, in Kubernetes' words; a driver's name comes before the second one.
const (
	tooMany  = "node(s) exceed max volume count"
	noDriver = "CSI driver is not installed on the node"
)

type limits struct {
	nodes   fwk.CSINodeLister
	drivers storagelisters.CSIDriverLister
	find    finder
}

// needs are the volumes of a pod that count, or what is to be said of it for each node.
type needs struct {
	volumes ids
	// wanting are the drivers without which a node is none for the pod.
	wanting sets.Set[string]
	refused *fwk.Status
}

// Clone is itself: it does not change.
func (n *needs) Clone() fwk.StateData { return n }

var errNoManager = errors.New("there is nobody who knows the drivers of nodes")

// New makes the plugin.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	m := h.SharedCSIManager()
	if m == nil {
		return nil, errNoManager
	}
	f := h.SharedInformerFactory()
	find, err := newFinder(f)
	if err != nil {
		return nil, err
	}
	return &limits{nodes: m.CSINodes(), drivers: f.Storage().V1().CSIDrivers().Lister(), find: find}, nil
}

// Name is Kubernetes' name of the plugin.
func (*limits) Name() string { return Name }

// SignPod says what of a pod counts here.
func (*limits) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return plugin.WithoutClaims(pod)
}

// PreFilter finds the pod's volumes of drivers; most pods have none.
func (l *limits) PreFilter(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	n := &needs{volumes: ids{}, wanting: sets.New[string]()}
	claims := false
	for range plugin.Claims(pod) {
		claims = true
	}
	if !claims {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	err := l.find.ofPod(pod, n.volumes)
	switch {
	case apierrors.IsNotFound(err):
		// Said node by node, so that who says it of the whole pod, and better, is heard.
		n.refused = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	case err != nil:
		return nil, fwk.AsStatus(err)
	case len(n.volumes) == 0:
		return nil, fwk.NewStatus(fwk.Skip)
	}
	for id := range n.volumes {
		driver, err := l.drivers.Get(id.driver)
		if err == nil && driver.Spec.PreventPodSchedulingIfMissing != nil && *driver.Spec.PreventPodSchedulingIfMissing {
			n.wanting.Insert(id.driver)
		}
	}
	state.Write(key, n)
	return nil, nil
}

// PreFilterExtensions are none: what pods have is counted node by node.
func (*limits) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter takes nodes that have room for the volumes that they do not have yet.
func (l *limits) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	n, err := plugin.Read[*needs](state, key)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if n.refused != nil {
		return fwk.NewStatus(n.refused.Code(), n.refused.Reasons()...)
	}
	has, err := l.nodes.Get(info.Node().Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fwk.AsStatus(err)
	}
	if err != nil {
		has = nil // the node has no driver yet
	}
	for driver := range n.wanting {
		if !installed(has, driver) {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("%s %s", driver, noDriver))
		}
	}
	limited := false
	for id := range n.volumes {
		limited = limited || limit(has, id.driver) != nil
	}
	if !limited {
		return nil
	}
	used, err := l.used(info)
	if err != nil {
		return fwk.AsStatus(err)
	}
	more := map[string]int{}
	for id := range n.volumes {
		if !used[id] {
			more[id.driver]++
		}
	}
	for driver, count := range more {
		if most := limit(has, driver); most != nil && used.of(driver)+count > int(*most) {
			return fwk.NewStatus(fwk.Unschedulable, tooMany)
		}
	}
	return nil
}

// used are the volumes of a node: of its pods, and those attached to it still, or already, that none of them has.
func (l *limits) used(info fwk.NodeInfo) (ids, error) {
	used := ids{}
	for _, p := range info.GetPods() {
		// What of another pod's claims is not known any more cannot be counted, and is not this pod's fault.
		_ = l.find.ofPod(p.GetPod(), used)
	}
	if err := l.find.attached(info.Node().Name, used); err != nil {
		return nil, err
	}
	return used, nil
}

// installed says whether a node has a driver.
func installed(has *storagev1.CSINode, driver string) bool { return entry(has, driver) != nil }

func entry(has *storagev1.CSINode, driver string) *storagev1.CSINodeDriver {
	if has == nil {
		return nil
	}
	for i := range has.Spec.Drivers {
		if has.Spec.Drivers[i].Name == driver {
			return &has.Spec.Drivers[i]
		}
	}
	return nil
}

// limit is how many volumes of a driver a node can have; nil: any number.
func limit(has *storagev1.CSINode, driver string) *int32 {
	e := entry(has, driver)
	if e == nil || e.Allocatable == nil {
		return nil
	}
	return e.Allocatable.Count
}
