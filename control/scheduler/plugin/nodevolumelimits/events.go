package nodevolumelimits

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// EventsToRegister has pods tried again when a node can have more volumes, or has fewer, and when what is known of
// their own changes.
func (l *limits) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.On(fwk.CSINode, fwk.Add|fwk.Update, l.nodeChanged),
		plugin.On(fwk.CSIDriver, fwk.Update|fwk.Delete, l.driverChanged),
		plugin.OnAssigned(fwk.Delete, l.podGone),
		plugin.OnClaim(fwk.Add | fwk.Update),
		plugin.On(fwk.VolumeAttachment, fwk.Delete, l.detached),
	}, nil
}

// nodeChanged queues a pod when a node has a driver of its that was not there, or that takes more volumes than it did.
func (l *limits) nodeChanged(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*storagev1.CSINode](before, after)
	if err != nil || is == nil {
		return fwk.Queue, err
	}
	for driver := range l.driversOf(pod) {
		if !installed(is, driver) {
			continue
		}
		most := limit(is, driver)
		if !installed(was, driver) && (most == nil || *most > 0) {
			return fwk.Queue, nil
		}
		if least := limit(was, driver); least != nil && (most == nil || *most > *least) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// driverChanged queues a pod when a driver of its does not insist on being there any more.
func (l *limits) driverChanged(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*storagev1.CSIDriver](before, after)
	if err != nil || was == nil {
		return fwk.Queue, err
	}
	insists := func(d *storagev1.CSIDriver) bool {
		return d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing
	}
	if insists(was) && !insists(is) && l.driversOf(pod)[was.Name] {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// podGone queues a pod when one with volumes of a driver of its is gone.
func (l *limits) podGone(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, _, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil || was == nil {
		return fwk.Queue, err
	}
	// Its claims may be gone with it, and then nobody knows whose volumes they were.
	for range plugin.Claims(was) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// detached queues a pod when a volume of a driver of its is not attached any more.
func (l *limits) detached(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, _, err := plugin.Objects[*storagev1.VolumeAttachment](before, after)
	if err != nil || was == nil {
		return fwk.Queue, err
	}
	if l.driversOf(pod)[was.Spec.Attacher] {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

func (l *limits) driversOf(pod *corev1.Pod) map[string]bool {
	found, drivers := ids{}, map[string]bool{}
	_ = l.find.ofPod(pod, found) // what is not known has no driver yet
	for one := range found {
		drivers[one.driver] = true
	}
	return drivers
}
