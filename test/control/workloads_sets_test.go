package control

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// stateful waits until a set has its pods, all available, and of one revision where it says so.
func (p *plane) stateful(t *testing.T, name string, replicas, updated int32) *appsv1.StatefulSet {
	t.Helper()
	var s *appsv1.StatefulSet
	until(t, fmt.Sprintf("stateful set %s has %d pods, %d updated", name, replicas, updated), func() (err error) {
		s, err = p.client.AppsV1().StatefulSets(p.ns).Get(t.Context(), name, metav1.GetOptions{})
		if o := s.Status; err == nil && (o.ObservedGeneration != s.Generation || o.Replicas != replicas || o.AvailableReplicas != replicas || o.UpdatedReplicas != updated) {
			err = fmt.Errorf("its status is %+v", o)
		}
		return err
	})
	return s
}

// TestStatefulSet has pods come and go in their order, with claims of their own, updated down to a partition, while the
// process is killed now and then.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir)
	port := p.port(t)
	p.hollow(t, "a", "b")
	p.equipped(t, "default")
	if _, err := p.client.AppsV1().StatefulSets("default").Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(3)), Selector: labelled("s"), ServiceName: "svc", Template: template("s", "one"),
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := p.stateful(t, "s", 3, 3)
	if s.Status.CurrentRevision != s.Status.UpdateRevision {
		t.Errorf("its status is %+v", s.Status)
	}
	all := p.podsOf(t, "s")
	slices.SortFunc(all, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for _, o := range all {
		i := o.Labels["apps.kubernetes.io/pod-index"]
		if o.Name != "s-"+i || o.Spec.Hostname != o.Name || o.Spec.Subdomain != "svc" || o.Labels[appsv1.ControllerRevisionHashLabelKey] != s.Status.UpdateRevision {
			t.Errorf("a pod is %v", o.ObjectMeta)
		}
		c, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data-"+o.Name, metav1.GetOptions{})
		if err != nil || !metav1.IsControlledBy(c, s) || c.Labels["app"] != "s" {
			t.Errorf("its claim is %v, %v", c, err)
		}
	}
	// Only what is not below the partition is updated; one that is deleted comes as it was.
	p.patch(t, "statefulsets", "s", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}},"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	p.stateful(t, "s", 3, 1)
	remove(t, p, "s-0")
	images := func(want ...string) {
		t.Helper()
		until(t, fmt.Sprintf("the images are %v", want), func() error {
			for i, image := range want {
				o, err := p.client.CoreV1().Pods("default").Get(t.Context(), "s-"+strconv.Itoa(i), metav1.GetOptions{})
				if err != nil {
					return err
				}
				if got := o.Spec.Containers[0].Image; got != image || o.DeletionTimestamp != nil {
					return fmt.Errorf("%s has %s", o.Name, got)
				}
			}
			return nil
		})
	}
	images("one", "one", "two")
	p.patch(t, "statefulsets", "s", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	for range 2 {
		p.kill()
		p = startAt(t, dir, port)
	}
	s = p.stateful(t, "s", 3, 3)
	images("two", "two", "two")
	if s.Status.CurrentRevision != s.Status.UpdateRevision || s.Status.CurrentReplicas != 3 {
		t.Errorf("its status is %+v", s.Status)
	}
	// With claims that go with their pods, the claims of pods that are scaled away are the pods'.
	p.patch(t, "statefulsets", "s", `{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenScaled":"Delete"},"replicas":1}}`)
	p.stateful(t, "s", 1, 1)
	for i, owner := range []string{"StatefulSet", "Pod", "Pod"} {
		c, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), fmt.Sprintf("data-s-%d", i), metav1.GetOptions{})
		if apierrors.IsNotFound(err) && i > 0 {
			continue // whoever collects garbage was faster
		}
		if err != nil || metav1.GetControllerOf(c) == nil || metav1.GetControllerOf(c).Kind != owner {
			t.Errorf("the claim is %v, %v", c, err)
		}
	}
	// The claims go as they would with a collector of garbage, which is another controller: a pod waits for it.
	for _, name := range []string{"data-s-1", "data-s-2"} {
		claims := p.client.CoreV1().PersistentVolumeClaims("default")
		_ = claims.Delete(t.Context(), name, metav1.DeleteOptions{})
		_, err := claims.Patch(t.Context(), name, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	// Other numbers: those below go, those above come.
	p.patch(t, "statefulsets", "s", `{"spec":{"ordinals":{"start":1},"persistentVolumeClaimRetentionPolicy":{"whenScaled":"Retain"}}}`)
	p.stateful(t, "s", 1, 1)
	until(t, "the pod has another number", func() error {
		if all := p.podsOf(t, "s"); len(all) != 1 || all[0].Name != "s-1" {
			return fmt.Errorf("there are %d pods", len(all))
		}
		return nil
	})
}

// TestStatefulSetParallel has pods come at once, and two at a time be updated.
func TestStatefulSetParallel(t *testing.T) {
	t.Parallel()
	p := share(t)
	h := p.hollow(t, "a")
	h.say(unready)
	if _, err := p.client.AppsV1().StatefulSets(p.ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(6)), Selector: labelled("s"), Template: p.template("s", "one"), PodManagementPolicy: appsv1.ParallelPodManagement,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: new(intstr.FromInt32(2))}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "all are there and none is ready", func() error {
		if n := len(p.podsOf(t, "s")); n != 6 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	h.say(running)
	p.stateful(t, "s", 6, 6)
	h.say(func(o *corev1.Pod) corev1.PodStatus { return started(o, o.Spec.Containers[0].Image == "one") })
	p.patch(t, "statefulsets", "s", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	until(t, "two are updated, and not ready", func() error {
		s, err := p.client.AppsV1().StatefulSets(p.ns).Get(t.Context(), "s", metav1.GetOptions{})
		if err == nil && (s.Status.UpdatedReplicas != 2 || s.Status.ReadyReplicas != 4) {
			err = fmt.Errorf("its status is %+v", s.Status)
		}
		return err
	})
	h.say(running)
	p.stateful(t, "s", 6, 6)
}

// daemons waits until a set has its pods on so many nodes.
func (p *plane) daemons(t *testing.T, name string, n int32) *appsv1.DaemonSet {
	t.Helper()
	var d *appsv1.DaemonSet
	until(t, fmt.Sprintf("daemon set %s has %d pods", name, n), func() (err error) {
		d, err = p.client.AppsV1().DaemonSets(p.ns).Get(t.Context(), name, metav1.GetOptions{})
		if o := d.Status; err == nil && (o.ObservedGeneration != d.Generation || o.DesiredNumberScheduled != n || o.NumberAvailable != n ||
			o.UpdatedNumberScheduled != n || o.NumberMisscheduled != 0) {
			err = fmt.Errorf("its status is %+v", o)
		}
		return err
	})
	return d
}

// TestDaemonSet has a pod on each node that is to have one, also on those that come, replaces failed ones, and updates
// them one by one, or beside each other.
func TestDaemonSet(t *testing.T) {
	t.Parallel()
	p := share(t)
	h := p.hollow(t, "a", "b", "c")
	label := func(node, labels string) {
		if _, err := p.client.CoreV1().Nodes().Patch(t.Context(), p.named(node), "application/merge-patch+json", []byte(`{"metadata":{"labels":`+labels+`}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("a", `{"color":"red"}`)
	label("b", `{"color":"red"}`)
	o := p.template("d", "one")
	if o.Spec.NodeSelector == nil {
		o.Spec.NodeSelector = map[string]string{}
	}
	o.Spec.NodeSelector["color"] = "red"
	if _, err := p.client.AppsV1().DaemonSets(p.ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DaemonSetSpec{Selector: labelled("d"), Template: o},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := p.daemons(t, "d", 2)
	label("c", `{"color":"red"}`)
	p.daemons(t, "d", 3)
	label("c", `{"color":null}`)
	p.daemons(t, "d", 2)
	for _, o := range p.podsOf(t, "d") {
		if !metav1.IsControlledBy(&o, d) || len(o.Spec.Tolerations) < 6 || o.Spec.Affinity.NodeAffinity == nil {
			t.Errorf("a pod is %v", o.Spec)
		}
	}
	// A failed one is replaced.
	was := p.podsOf(t, "d")[0].Name
	h.say(func(o *corev1.Pod) corev1.PodStatus {
		if o.Name == was {
			return exited(1)(o)
		}
		return running(o)
	})
	until(t, "the failed one is gone", func() error {
		_, err := p.client.CoreV1().Pods(p.ns).Get(t.Context(), was, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
	p.daemons(t, "d", 2)
	// A rollout whose pods are not ready stops at the first one.
	h.say(func(o *corev1.Pod) corev1.PodStatus { return started(o, o.Spec.Containers[0].Image != "broken") })
	p.patch(t, "daemonsets", "d", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"broken"}]}}}}`)
	until(t, "one is updated, and not ready", func() error {
		d, err := p.client.AppsV1().DaemonSets(p.ns).Get(t.Context(), "d", metav1.GetOptions{})
		if err == nil && (d.Status.UpdatedNumberScheduled != 1 || d.Status.NumberAvailable != 1 || d.Status.NumberUnavailable != 1) {
			err = fmt.Errorf("its status is %+v", d.Status)
		}
		return err
	})
	// Back to what was before, nothing is ended that is of it.
	image := func(name string) string {
		return `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"` + name + `"}]}}}}`
	}
	stays := p.podsOf(t, "d")
	stays = slices.DeleteFunc(stays, func(o corev1.Pod) bool { return o.Spec.Containers[0].Image == "broken" })
	p.patch(t, "daemonsets", "d", image("one"))
	p.daemons(t, "d", 2)
	if len(stays) != 1 || !slices.ContainsFunc(p.podsOf(t, "d"), func(o corev1.Pod) bool { return o.UID == stays[0].UID }) {
		t.Errorf("%v is not there any more", stays)
	}
	p.patch(t, "daemonsets", "d", image("two"))
	p.daemons(t, "d", 2)
	p.patch(t, "daemonsets", "d", `{"spec":{"updateStrategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}},"template":{"spec":{"containers":[{"name":"c","image":"three"}]}}}}`)
	p.daemons(t, "d", 2)
	all, err := p.client.AppsV1().ControllerRevisions(p.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=d"})
	if err != nil || len(all.Items) != 4 {
		t.Errorf("there are %d revisions, %v", len(all.Items), err)
	}
	until(t, "the pods of before are ended", func() error {
		if n := len(p.podsOf(t, "d")); n != 2 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}
