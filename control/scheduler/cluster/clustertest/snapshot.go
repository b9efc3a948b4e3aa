// Package clustertest has clusters for the tests of who schedules to them.
package clustertest

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// Snapshot is a snapshot of so many pods on so many nodes. Pods that were given no UID have one by their name.
func Snapshot(pods []*corev1.Pod, nodes []*corev1.Node) *cluster.Snapshot {
	c := cluster.NewCache()
	for _, n := range nodes {
		c.SetNode(n)
	}
	for _, p := range pods {
		if p.UID == "" {
			p = p.DeepCopy()
			p.UID = types.UID(p.Namespace + "/" + p.Name)
		}
		c.SetPod(p)
	}
	s := cluster.NewEmptySnapshot()
	c.Update(s)
	return s
}
