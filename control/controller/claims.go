package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
)

// ClaimsOf are the names of the claims that a pod uses, those of its ephemeral volumes among them.
func ClaimsOf(p *corev1.Pod) []string {
	var names []string
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, ephemeral.VolumeClaimName(p, v))
		}
	}
	return names
}

// Uses says whether a pod uses a claim, and not only one of the same name as that of its ephemeral volume.
func Uses(p *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name ||
			v.Ephemeral != nil && ephemeral.VolumeClaimName(p, v) == claim.Name && ephemeral.VolumeIsForPod(p, claim) == nil {
			return true
		}
	}
	return false
}

// ByClaim is the index of pods by the claims that they use, which several controllers ask of one informer.
const ByClaim = "claims"

// IndexByClaim has an informer of pods index them by the claims that they use.
func IndexByClaim(pods cache.SharedIndexInformer) error {
	return Index(pods, ByClaim, func(o any) ([]string, error) {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return nil, nil
		}
		var keys []string
		for _, name := range ClaimsOf(p) {
			keys = append(keys, p.Namespace+"/"+name)
		}
		return keys, nil
	})
}

// UsersOf are the pods that use a claim of a name, by the index of [IndexByClaim].
func UsersOf(pods cache.Indexer, namespace, claim string) []*corev1.Pod {
	all, err := pods.ByIndex(ByClaim, namespace+"/"+claim)
	if err != nil {
		return nil // the index is made before it is asked
	}
	var users []*corev1.Pod
	for _, o := range all {
		if p, ok := o.(*corev1.Pod); ok {
			users = append(users, p)
		}
	}
	return users
}
