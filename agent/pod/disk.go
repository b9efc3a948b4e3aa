package pod

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/eviction"
)

// evictedGrace is what a pod has that is evicted for what it takes, as under kubelet.
const evictedGrace = 1

// onDisk is what pods have on the node's disk, and their end when that is too much.
type onDisk struct{ node *node }

var (
	_ eviction.Pods  = onDisk{}
	_ eviction.Usage = onDisk{}
)

// Here implements [eviction.Pods].
func (d onDisk) Here() []*corev1.Pod {
	var out []*corev1.Pod
	for _, w := range d.node.registry.all() {
		out = append(out, w.share.Pod)
	}
	return out
}

// Evict implements [eviction.Pods].
func (d onDisk) Evict(pod *corev1.Pod, message string) {
	w, ok := d.node.registry.get(pod.UID)
	if !ok {
		return
	}
	d.node.event(pod, corev1.EventTypeWarning, "Evicted", "%s", message)
	w.mail.putEviction(Eviction{
		Reason: "Evicted", Message: message, GraceSeconds: evictedGrace, Return: ReturnDelayed,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: message,
		}},
	})
}

// Volume is by the file system's word where that counts an emptyDir. A pod without users of its own can give its files
// to another project than the volume's, so that it takes more than the file system says: its are looked at one by one.
func (d onDisk) Volume(ctx context.Context, pod *corev1.Pod, name string) (int64, bool) {
	if ownUsers(pod) {
		if used, ok := volume.Charged(d.node.cfg.RootDir, pod.UID, name); ok {
			return used, true
		}
	}
	return d.node.cfg.DiskUse(ctx, volume.EmptyDir(d.node.cfg.RootDir, pod.UID, name))
}

// Containers implements [eviction.Usage]. The runtime counts the containers' layers.
func (d onDisk) Containers(ctx context.Context, pod *corev1.Pod) (use map[string]int64, layers []string, err error) {
	r, err := d.node.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{spec.PodUIDLabel: string(pod.UID)}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list stats of containers: %w", err)
	}
	use = map[string]int64{}
	attempts := map[string]uint32{}
	for _, s := range r.GetStats() {
		layer := s.GetWritableLayer()
		if dir := layer.GetFsId().GetMountpoint(); dir != "" {
			layers = append(layers, dir)
		}
		// What is left of earlier attempts is the runtime's to remove, not the pod's to answer for.
		m := s.GetAttributes().GetMetadata()
		if before, ok := attempts[m.GetName()]; !ok || m.GetAttempt() >= before {
			attempts[m.GetName()] = m.GetAttempt()
			use[m.GetName()] = int64(layer.GetUsedBytes().GetValue())
		}
	}
	logs := spec.LogDirectory(d.node.cfg.LogDir, pod)
	for name := range use {
		if used, ok := d.node.cfg.DiskUse(ctx, filepath.Join(logs, name)); ok {
			use[name] += used
		}
	}
	return use, layers, nil
}
