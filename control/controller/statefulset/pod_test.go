package statefulset

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func web() *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "n", UID: "s"},
		Spec: appsv1.StatefulSetSpec{
			ServiceName: "svc", Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"a": "b"}}}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, {Name: "other"},
			}}},
		},
	}
}

func TestOrdinal(t *testing.T) {
	for name, want := range map[string]int{
		"web-0": 0, "web-12": 12, "web": -1, "web-": -1, "web-01": -1, "web--1": -1, "web-+1": -1, "other-1": -1, "web-a": -1,
		"web-99999999999": -1, "web-1-2": -1,
	} {
		if got := ordinalOf(web(), name); got != want {
			t.Errorf("%s is %d", name, got)
		}
	}
}

// TestPod has a pod be who it is, with its claims in place of volumes of their names.
func TestPod(t *testing.T) {
	s := web()
	p := newPod(s, &s.Spec.Template, 4, "web-abc")
	if p.Name != "web-4" || p.GenerateName != "" || p.Spec.Hostname != "web-4" || p.Spec.Subdomain != "svc" || !identified(s, p) ||
		p.Labels[appsv1.ControllerRevisionHashLabelKey] != "web-abc" || p.Labels[appsv1.PodIndexLabel] != "4" || !metav1.IsControlledBy(p, s) {
		t.Errorf("it is %+v", p)
	}
	if v := p.Spec.Volumes; len(v) != 2 || v[0].PersistentVolumeClaim == nil || v[0].PersistentVolumeClaim.ClaimName != "data-web-4" || v[1].Name != "other" {
		t.Errorf("its volumes are %v", v)
	}
	c := newClaim(s, &s.Spec.VolumeClaimTemplates[0], p.Name)
	if c.Name != "data-web-4" || c.Labels["a"] != "b" || c.Labels["app"] != "web" || s.Spec.VolumeClaimTemplates[0].Labels["app"] != "" {
		t.Errorf("its claim is %+v", c)
	}
	if s.Spec.Template.Spec.Volumes[0].EmptyDir == nil {
		t.Error("the template has changed")
	}
}

// TestRetention has claims be whose the policy says, and leaves alone what others own.
func TestRetention(t *testing.T) {
	keep, end := appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", UID: "p"}}
	foreign := metav1.OwnerReference{Kind: "ConfigMap", Name: "x", UID: "x"}
	for _, c := range []struct {
		deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType
		wanted          bool
		owners          []string
	}{
		{keep, keep, true, []string{"x"}},
		{keep, keep, false, []string{"x"}},
		{end, keep, true, []string{"x", "s"}},
		{end, keep, false, []string{"x", "s"}},
		{keep, end, true, []string{"x"}},
		{keep, end, false, []string{"x", "p"}},
		{end, end, true, []string{"x", "s"}},
		{end, end, false, []string{"x", "p"}},
	} {
		s := web()
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: c.deleted, WhenScaled: c.scaled}
		// Whatever it was before.
		for _, before := range [][]metav1.OwnerReference{{foreign}, {foreign, *metav1.NewControllerRef(s, kind)}, {foreign, *metav1.NewControllerRef(p, podKind)}} {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: before}}
			belong(s, p, claim, retains(s, c.wanted))
			var owners []string
			for _, o := range claim.OwnerReferences {
				owners = append(owners, string(o.UID))
			}
			if !slices.Equal(owners, c.owners) || belong(s, p, claim, retains(s, c.wanted)) {
				t.Errorf("%+v: it is of %v", c, owners)
			}
		}
		controlled := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "other", Controller: new(true)}}}}
		if belong(s, p, controlled, retains(s, c.wanted)) || len(controlled.OwnerReferences) != 1 {
			t.Errorf("another's claim is of %v", controlled.OwnerReferences)
		}
	}
}

func TestWanted(t *testing.T) {
	s := web()
	s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
	s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2)), MaxUnavailable: new(intstr.FromString("50%"))}
	w := wanted(s, "a", "b")
	if w.Start != 5 || w.Replicas != 3 || w.Partition != 2 || w.MaxUnavailable != 2 || w.Parallel || w.OnDelete || w.RevisionOf(6) != "a" || w.RevisionOf(7) != "b" {
		t.Errorf("it is %+v", w)
	}
	s.Spec.Replicas = new(int32(0))
	if w := wanted(s, "a", "b"); w.MaxUnavailable != 1 {
		t.Errorf("it is %+v", w)
	}
}
