package cluster_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// TestSince has a snapshot know which nodes have changed, and whether others are concerned.
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
		name     string
		change   func()
		want     []string
		opinions bool
		unknown  bool
	}{
		{"nothing", func() {}, nil, false, false},
		{"a pod", func() { c.SetPod(pod("p", "b", "1")) }, []string{"b"}, false, false},
		{"a pod that goes", func() { c.DeletePod("p") }, []string{"b"}, false, false},
		{"a cordon", func() { c.SetNode(cordoned) }, []string{"a"}, false, false},
		{"labels", func() { c.SetNode(moved) }, nil, false, true},
		{"images", func() { c.SetNode(pulled) }, nil, false, true},
		{"a pod with affinity", func() { c.SetPod(near) }, []string{"b"}, true, false},
		{"the same pod, told of again", func() { c.SetPod(confirmed) }, []string{"b"}, false, false},
		{"a pod with affinity that goes", func() { c.DeletePod(near.UID) }, []string{"b"}, true, false},
		{"a new node", func() { c.SetNode(node("c", "1")) }, nil, false, true},
		{"a node that goes", func() { c.DeleteNode("c") }, nil, false, true},
		{"all again and again", func() {
			for i := range 2000 {
				c.SetPod(pod(fmt.Sprint(i), "a", "1m"))
				c.Update(s)
			}
		}, nil, false, true},
	} {
		mark := s.Mark()
		step.change()
		c.Update(s)
		got, known := s.Since(mark)
		if known == step.unknown || known && (!slices.Equal(got.Nodes, step.want) || got.Opinions != step.opinions) {
			t.Errorf("%s: %+v has changed, known: %t, want nodes %v and opinions %t", step.name, got, known, step.want, step.opinions)
		}
	}
}
