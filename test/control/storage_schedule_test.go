package control

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestScheduledClaims has the scheduler bind claims that wait for a pod: to a volume of the one node that has it, and
// to one that is made for the node that was chosen.
func TestScheduledClaims(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	s := storage{t, p.client}
	p.hollowWith(t, false, "a", "b")
	p.equipped(t, "default")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() { defer close(ended); s.provisions(ctx) }()
	on := func(name string) string {
		t.Helper()
		node := ""
		until(t, "pod "+name+" has a node", func() error {
			o, err := p.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if node = o.Spec.NodeName; node == "" {
				return fmt.Errorf("its conditions are %v", o.Status.Conditions)
			}
			return nil
		})
		return node
	}
	s.class(storageClass("local", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer, false))
	s.claim(storageClaim("disk", "local", "1Gi"))
	s.must(p.client.CoreV1().Pods("default").Create(t.Context(), claiming("first", "disk"), metav1.CreateOptions{}))
	// There is none yet, and the pod waits for it. An event that repeats keeps the message of the first, which may
	// be of nodes that were not ready; the condition has the last.
	until(t, "pod first is told that it waits for a volume", func() error {
		o, err := p.client.CoreV1().Pods("default").Get(t.Context(), "first", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "didn't find available persistent volumes to bind") {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", o.Status.Conditions)
	})
	v := storageVolume("of-b", "local", "1Gi")
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}},
	}}}}
	s.volume(v)
	if node := on("first"); node != "b" {
		t.Errorf("the pod is on %s", node)
	}
	s.claimIs("disk", corev1.ClaimBound, "of-b")

	s.class(storageClass("made", testDriver, storagev1.VolumeBindingWaitForFirstConsumer, false))
	s.claim(storageClaim("fresh", "made", "1Gi"))
	s.must(p.client.CoreV1().Pods("default").Create(t.Context(), claiming("second", "fresh"), metav1.CreateOptions{}))
	node := on("second")
	c := s.claimIs("fresh", corev1.ClaimBound, "pvc-"+s.claimUID("fresh"))
	if got := c.Annotations["volume.kubernetes.io/selected-node"]; got != node {
		t.Errorf("the volume was made for %q, and the pod is on %s", got, node)
	}

	// What one pod alone may have is the next one's when that is gone.
	alone := storageClaim("alone", "made", "1Gi")
	alone.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	s.claim(alone)
	s.must(p.client.CoreV1().Pods("default").Create(t.Context(), claiming("third", "alone"), metav1.CreateOptions{}))
	on("third")
	s.must(p.client.CoreV1().Pods("default").Create(t.Context(), claiming("fourth", "alone"), metav1.CreateOptions{}))
	saysWhy(t, p, "fourth", "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")
	if err := p.client.CoreV1().Pods("default").Delete(t.Context(), "third", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	on("fourth")
}
