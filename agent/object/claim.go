package object

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// ClaimName is what the claim of a pod's ephemeral volume is called, as a cluster calls it.
func ClaimName(pod *corev1.Pod, volume string) string { return pod.Name + "-" + volume }

// ClaimOf is the claim that an ephemeral volume's template makes. The pod owns it: it comes and goes with the pod.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolumeClaim {
	t := v.Ephemeral.VolumeClaimTemplate
	if t == nil { // the API does not let that be, but an API server may
		t = &corev1.PersistentVolumeClaimTemplate{}
	}
	yes := true
	return &corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: string(PersistentVolumeClaim)},
		ObjectMeta: metav1.ObjectMeta{
			Name: ClaimName(pod, v.Name), Namespace: pod.Namespace, Labels: t.Labels, Annotations: t.Annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: string(Pod), Name: pod.Name, UID: pod.UID, Controller: &yes, BlockOwnerDeletion: &yes}},
		},
		Spec: t.Spec,
	}
}

// Choose finds the volume for a claim that a pod's template made: the one that the template names, else the one whose
// spec.claimRef names the claim, else the smallest that fits and that nobody else has. taken are the volumes that the
// claims of other pods' templates are bound to.
func (s *Store) Choose(c *corev1.PersistentVolumeClaim, node map[string]string, taken map[string]bool) (*corev1.PersistentVolume, error) {
	if _, err := get[*corev1.PersistentVolumeClaim](s, PersistentVolumeClaim, c.Namespace, c.Name); err == nil {
		return nil, fmt.Errorf("persistentvolumeclaim %q is in a manifest, so it was not made for this pod: give one of them another name", c.Name)
	}
	selector := labels.Everything()
	if c.Spec.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(c.Spec.Selector); err != nil {
			return nil, fmt.Errorf("claim template: selector: %w", err)
		}
	}
	volumes, claimed := s.volumes()
	var found []*corev1.PersistentVolume
	var why []string
	for _, v := range volumes {
		switch err := fits(v, c); {
		case c.Spec.VolumeName != "" && c.Spec.VolumeName != v.Name:
			continue
		case taken[v.Name]:
			why = append(why, fmt.Sprintf("persistentvolume %q: it is bound to the claim of another pod's ephemeral volume", v.Name))
		case claimed[v.Name] != "" && v.Spec.ClaimRef == nil:
			why = append(why, fmt.Sprintf("persistentvolume %q: it is bound to %s", v.Name, claimed[v.Name]))
		case err != nil:
			why = append(why, err.Error())
		case !selector.Matches(labels.Set(v.Labels)):
			why = append(why, fmt.Sprintf("persistentvolume %q: the claim's selector does not match its labels", v.Name))
		case c.Spec.VolumeName == "" && onNode(v, node) != nil:
			why = append(why, onNode(v, node).Error())
		default:
			found = append(found, v)
		}
	}
	if len(found) == 0 {
		if c.Spec.VolumeName != "" && len(why) == 0 {
			return nil, &NotFound{RefTo(PersistentVolume, "", c.Spec.VolumeName)}
		}
		return nil, noneFits(len(volumes), why)
	}
	slices.SortFunc(found, func(a, b *corev1.PersistentVolume) int {
		if bound := cmp.Compare(b2i(a.Spec.ClaimRef == nil), b2i(b.Spec.ClaimRef == nil)); bound != 0 {
			return bound
		}
		x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
		return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
	})
	return found[0], nil
}

// Made is what the claim is bound to that was made in the API server for an ephemeral volume of a pod. A claim of that
// name that is somebody else's is none of the pod's.
func (s *Store) Made(pod *corev1.Pod, volume string) (*corev1.PersistentVolume, error) {
	name := ClaimName(pod, volume)
	c, err := get[*corev1.PersistentVolumeClaim](s, PersistentVolumeClaim, pod.Namespace, name)
	if err != nil {
		return nil, err
	}
	if by := metav1.GetControllerOf(c); by == nil || by.UID != pod.UID {
		return nil, fmt.Errorf("persistentvolumeclaim %q was not created for pod %q (pod is not owner)", name, pod.Namespace+"/"+pod.Name)
	}
	return s.Volume(pod.Namespace, name)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// noneFits says of some of the volumes why each is none.
func noneFits(all int, why []string) error {
	const few = 5
	if all == 0 {
		return fmt.Errorf("there is no persistentvolume: nothing here makes one, so a manifest has to have it")
	}
	text := strings.Join(why[:min(len(why), few)], "; ")
	if more := len(why) - few; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return fmt.Errorf("no persistentvolume fits: %s", text)
}

// volumes lists the volumes, and says which are claimed by name, and by what.
func (s *Store) volumes() (all []*corev1.PersistentVolume, claimed map[string]string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	claimed = map[string]string{}
	for _, o := range s.objects {
		if v, ok := o.(*corev1.PersistentVolume); ok {
			all = append(all, v)
		}
	}
	for volume := range s.naming {
		claimed[volume] = claimants(s, volume)[0]
	}
	slices.SortFunc(all, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return all, claimed
}

// Bound is the volume that a template's claim was bound to before, as it is now.
func (s *Store) Bound(c *corev1.PersistentVolumeClaim, volume string) (*corev1.PersistentVolume, error) {
	v, err := get[*corev1.PersistentVolume](s, PersistentVolume, "", volume)
	if err != nil {
		return nil, err
	}
	return v, fits(v, c)
}

// onNode says why a volume cannot be had on the node with these labels.
func onNode(v *corev1.PersistentVolume, node map[string]string) error {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return nil
	}
	terms, err := nodeaffinity.NewNodeSelector(v.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Errorf("persistentvolume %q: nodeAffinity: %w", v.Name, err)
	}
	if !terms.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node}}) {
		return fmt.Errorf("persistentvolume %q: its nodeAffinity does not match this node's labels", v.Name)
	}
	return nil
}
