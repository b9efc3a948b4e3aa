package cluster_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// TestSince has a snapshot know which nodes have changed, as long as it is known that no others are concerned.
func TestSince(t *testing.T) {
	near := pod("near", "b", "1")
	near.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
		{TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}}}
	confirmed := near.DeepCopy()
	confirmed.ResourceVersion = "7"
	cordoned, moved, pulled := node("a", "1"), node("a", "2"), node("a", "2")
	cordoned.Spec.Unschedulable = true
	pulled.Status.Images = []corev1.ContainerImage{{Names: []string{"x:1"}, SizeBytes: 1}}
	c, s := cluster.NewCache(), cluster.NewEmptySnapshot()
	c.SetNode(node("a", "1"))
	c.SetNode(node("b", "1"))
	c.Update(s)
	for _, step := range []struct {
		name    string
		change  func()
		want    []string
		unknown bool
	}{
		{"nothing", func() {}, nil, false},
		{"a pod", func() { c.SetPod(pod("p", "b", "1")) }, []string{"b"}, false},
		{"a pod that goes", func() { c.DeletePod("p") }, []string{"b"}, false},
		{"a cordon", func() { c.SetNode(cordoned) }, []string{"a"}, false},
		{"labels", func() { c.SetNode(moved) }, nil, true},
		{"images", func() { c.SetNode(pulled) }, nil, true},
		{"a pod with affinity", func() { c.SetPod(near) }, nil, true},
		{"the same pod, told of again", func() { c.SetPod(confirmed) }, []string{"b"}, false},
		{"a pod with affinity that goes", func() { c.DeletePod(near.UID) }, nil, true},
		{"a new node", func() { c.SetNode(node("c", "1")) }, nil, true},
		{"a node that goes", func() { c.DeleteNode("c") }, nil, true},
		{"all again and again", func() {
			for i := range 2000 {
				c.SetPod(pod(fmt.Sprint(i), "a", "1m"))
				c.Update(s)
			}
		}, nil, true},
	} {
		mark := s.Mark()
		step.change()
		c.Update(s)
		got, known := s.Since(mark)
		if known == step.unknown || known && !slices.Equal(got, step.want) {
			t.Errorf("%s: nodes %v have changed, known: %t, want %v", step.name, got, known, step.want)
		}
	}
}
