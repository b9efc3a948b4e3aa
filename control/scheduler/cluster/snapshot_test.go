package cluster_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cluster/clustertest"
)

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}},
	}
}

func pod(name, on, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{
			Ports:     []corev1.ContainerPort{{HostPort: 80}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
}

// Nodes of several zones are looked at in turn.
func TestOrder(t *testing.T) {
	s := clustertest.Snapshot(nil, []*corev1.Node{node("a", "1"), node("b", "1"), node("c", "2"), node("d", "3")})
	all, _ := s.NodeInfos().List()
	var got string
	for _, n := range all {
		got += n.Node().Name
	}
	if got != "acdb" {
		t.Errorf("nodes are looked at in the order %s", got)
	}
}

// A pod counts from when it is assumed until it is forgotten or gone, and once only.
func TestAssume(t *testing.T) {
	c, s := cluster.NewCache(), cluster.NewEmptySnapshot()
	c.SetNode(node("a", ""))
	has := func(pods int, milli int64) {
		t.Helper()
		c.Update(s)
		n, err := s.NodeInfos().Get("a")
		if err != nil {
			t.Fatal(err)
		}
		if len(n.GetPods()) != pods || n.GetRequested().GetMilliCPU() != milli || n.GetUsedPorts().Len() != min(pods, 1) {
			t.Errorf("the node has %d pods that want %d, ports %v", len(n.GetPods()), n.GetRequested().GetMilliCPU(), n.GetUsedPorts())
		}
	}
	info, err := cluster.NewPodInfo(pod("p", "a", "500m"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Assume(info); err != nil {
		t.Fatal(err)
	}
	if err := c.Assume(info); err == nil {
		t.Error("a pod is assumed twice")
	}
	has(1, 500)
	c.Forget("p")
	has(0, 0)
	if err := c.Assume(info); err != nil {
		t.Fatal(err)
	}
	c.SetPod(pod("p", "a", "600m"))
	has(1, 600)
	c.Forget("p")
	has(1, 600)
	c.DeleteNode("a")
	c.Update(s)
	if s.Len() != 0 || c.Nodes() != 0 {
		t.Error("a node that is gone is in the snapshot")
	}
	c.SetNode(node("a", ""))
	has(1, 600)
	c.DeletePod("p")
	has(0, 0)
}
