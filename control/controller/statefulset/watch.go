package statefulset

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// ofOrphan is the set that would adopt a pod: by the pod's name, which no other set's pod has.
func (k *keeper) ofOrphan(o metav1.Object) []cache.ObjectName {
	s := k.set(o.GetNamespace(), beforeDash(o.GetName()))
	if s == nil || ordinalOf(s, o.GetName()) < 0 || !selector(s).Matches(labels.Set(o.GetLabels())) {
		return nil
	}
	return []cache.ObjectName{cache.MetaObjectToName(s)}
}

// ofClaim are the sets that may have a claim of such a name: one may wait for the claim to be gone. The name is those
// of a template, of a set and of a number, each of which may have dashes of its own.
func (k *keeper) ofClaim(o any) []cache.ObjectName {
	c, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	var keys []cache.ObjectName
	of := beforeDash(c.Name)
	for i := range len(of) {
		if of[i] != '-' {
			continue
		}
		s := k.set(c.Namespace, of[i+1:])
		if s == nil {
			continue
		}
		for j := range s.Spec.VolumeClaimTemplates {
			if s.Spec.VolumeClaimTemplates[j].Name == of[:i] {
				keys = append(keys, cache.MetaObjectToName(s))
			}
		}
	}
	return keys
}

// set is a set that the cache has, or nil.
func (k *keeper) set(namespace, name string) *appsv1.StatefulSet {
	s, err := k.sets.StatefulSets(namespace).Get(name)
	if err != nil {
		return nil
	}
	return s
}

// beforeDash is a name without the last dash and what follows.
func beforeDash(name string) string { return name[:max(0, strings.LastIndexByte(name, '-'))] }
