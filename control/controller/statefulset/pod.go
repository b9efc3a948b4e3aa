package statefulset

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/controller/owned"
)

// ordinalOf is the number of a set's pod by its name; -1: the name is none of the set's pods.
func ordinalOf(s metav1.Object, name string) int {
	text, is := strings.CutPrefix(name, s.GetName()+"-")
	n, err := strconv.ParseInt(text, 10, 32)
	if !is || err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return -1
	}
	return int(n)
}

func podName(s metav1.Object, ordinal int) string { return s.GetName() + "-" + strconv.Itoa(ordinal) }

func claimName(t *corev1.PersistentVolumeClaim, pod string) string { return t.Name + "-" + pod }

// newPod is the pod of an ordinal, of a revision.
func newPod(s *appsv1.StatefulSet, t *corev1.PodTemplateSpec, ordinal int, revision string) *corev1.Pod {
	p := owned.FromTemplate(t, s, kind)
	p.GenerateName, p.Name = "", podName(s, ordinal)
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, s.Spec.ServiceName
	identify(s, p)
	p.Labels[appsv1.ControllerRevisionHashLabelKey] = revision
	mount(s, p)
	return p
}

// identify has a pod carry who it is.
func identify(s *appsv1.StatefulSet, p *corev1.Pod) {
	p.Labels = maps.Clone(p.Labels)
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
	p.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinalOf(s, p.Name))
}

func identified(s *appsv1.StatefulSet, p *corev1.Pod) bool {
	return p.Labels[appsv1.StatefulSetPodNameLabel] == p.Name && p.Labels[appsv1.PodIndexLabel] == strconv.Itoa(ordinalOf(s, p.Name))
}

// mount has a pod use its claims, in place of volumes of their names.
func mount(s *appsv1.StatefulSet, p *corev1.Pod) {
	var volumes []corev1.Volume
	for i := range s.Spec.VolumeClaimTemplates {
		t := &s.Spec.VolumeClaimTemplates[i]
		volumes = append(volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(t, p.Name)},
		}})
	}
	for _, v := range p.Spec.Volumes {
		if !slices.ContainsFunc(volumes, func(c corev1.Volume) bool { return c.Name == v.Name }) {
			volumes = append(volumes, v)
		}
	}
	p.Spec.Volumes = volumes
}

// newClaim is a claim of a pod.
func newClaim(s *appsv1.StatefulSet, t *corev1.PersistentVolumeClaim, pod string) *corev1.PersistentVolumeClaim {
	c := t.DeepCopy()
	c.Namespace, c.Name, c.Status = s.Namespace, claimName(t, pod), corev1.PersistentVolumeClaimStatus{}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	maps.Copy(c.Labels, s.Spec.Selector.MatchLabels)
	return c
}

// retention is whose a claim is to be, by which it goes when that does: the set's, its pod's, or nobody's.
type retention struct{ set, pod bool }

func retains(s *appsv1.StatefulSet, wanted bool) retention {
	var r retention
	if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		r.set = p.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
		if !wanted && p.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
			r = retention{pod: true}
		}
	}
	return r
}

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// belong gives a claim the owners it is to have, and says whether that changes it. References of others stay, and a
// claim that another controls is that one's to keep or to end.
func belong(s *appsv1.StatefulSet, p *corev1.Pod, c *corev1.PersistentVolumeClaim, r retention) bool {
	if o := metav1.GetControllerOfNoCopy(c); o != nil && o.UID != s.UID && (p == nil || o.UID != p.UID) {
		return false
	}
	refs := slices.Clone(c.OwnerReferences)
	put := func(is bool, ref metav1.OwnerReference) {
		at := slices.IndexFunc(refs, func(o metav1.OwnerReference) bool { return o.UID == ref.UID })
		switch {
		case is && at < 0:
			refs = append(refs, ref)
		case !is && at >= 0:
			refs = slices.Delete(refs, at, at+1)
		}
	}
	put(r.set, *metav1.NewControllerRef(s, kind))
	if p != nil && p.UID != "" {
		put(r.pod, *metav1.NewControllerRef(p, podKind))
	}
	if len(refs) == len(c.OwnerReferences) && slices.EqualFunc(refs, c.OwnerReferences, func(a, b metav1.OwnerReference) bool { return a.UID == b.UID }) {
		return false
	}
	c.OwnerReferences = refs
	return true
}

// stale says whether a claim is about to go, with a pod of before that had the name: the next one waits until it has.
func stale(p string, uid string, c *corev1.PersistentVolumeClaim) bool {
	return c.DeletionTimestamp != nil || slices.ContainsFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == podKind.Kind && o.Name == p && string(o.UID) != uid
	})
}
