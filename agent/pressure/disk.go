package pressure

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// disk are the pods with what they have on the file system that the signal is of.
func (n *Node) disk(ctx context.Context, of signal.Signal) ([]rank.Pod, error) {
	all := n.cfg.Pods.Candidates()
	pods := make([]*corev1.Pod, 0, len(all))
	for i := range all {
		pods = append(pods, all[i].Pod)
	}
	taken, err := n.cfg.Pods.Taken(ctx, pods)
	if err != nil {
		return nil, err
	}
	var out []rank.Pod
	for i := range all {
		p := all[i].Pod
		one := describe(&all[i], n.cfg.Cluster)
		t, ok := taken[p.UID]
		one.Known, one.AtLeast = ok, t.AtLeast
		where := placesOf(of, t.Apart)
		one.Usage = where.of(t)
		if of.Requestable() {
			requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
			one.Request = requests.StorageEphemeral().Value()
		}
		one.Containers = containersOf(p, corev1.ResourceEphemeralStorage, func(name string) int64 {
			return where.ofContainer(t, name)
		})
		out = append(out, one)
	}
	return out, nil
}

// places says which files of pods are on the file system of a signal, and what of them counts.
type places struct {
	layers, rest bool // rest are logs and volumes
	inodes       bool
}

// placesOf is as kubelet has it: where images have a file system of their own, the layers of containers are there
// and all else is on the node's. Otherwise what is on one is on the other.
func placesOf(of signal.Signal, apart bool) places {
	p := places{inodes: of.Resource() == signal.ResourceInodes}
	ofNode := of == signal.NodeFsAvailable || of == signal.NodeFsInodesFree
	p.layers, p.rest = !apart || !ofNode, !apart || ofNode
	return p
}

func (w places) amount(s pod.Space) int64 {
	if w.inodes {
		return s.Inodes
	}
	return s.Bytes
}

func (w places) of(t pod.Taken) int64 {
	var sum int64
	for _, s := range t.Layers {
		if w.layers {
			sum += w.amount(s)
		}
	}
	if !w.rest {
		return sum
	}
	for _, of := range []map[string]pod.Space{t.Logs, t.Volumes} {
		for _, s := range of {
			sum += w.amount(s)
		}
	}
	return sum + w.amount(t.Shared)
}

// ofContainer is without volumes, which are the pod's.
func (w places) ofContainer(t pod.Taken, name string) int64 {
	var sum int64
	if w.layers {
		sum += w.amount(t.Layers[name])
	}
	if w.rest {
		sum += w.amount(t.Logs[name])
	}
	return sum
}
