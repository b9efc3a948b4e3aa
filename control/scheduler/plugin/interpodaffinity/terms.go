package interpodaffinity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	requiredField  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferredField = "preferredDuringSchedulingIgnoredDuringExecution"
)

func pathOf(kind, list string) *field.Path {
	return field.NewPath("spec", "affinity", kind, list)
}

// terms are of the pod that is placed, parsed: required or preferred, near and away.
type terms struct {
	near, away              []fwk.AffinityTerm
	likesNear, dislikesNear []fwk.WeightedAffinityTerm
}

// required parses what a pod demands.
func required(pod *corev1.Pod) (t terms, err error) {
	a := pod.Spec.Affinity
	if t.near, err = parse(pod, fwk.GetPodAffinityTerms(a), pathOf("podAffinity", requiredField)); err != nil {
		return t, err
	}
	t.away, err = parse(pod, fwk.GetPodAntiAffinityTerms(a), pathOf("podAntiAffinity", requiredField))
	return t, err
}

// preferred parses what a pod would like.
func preferred(pod *corev1.Pod) (t terms, err error) {
	a := pod.Spec.Affinity
	if a != nil && a.PodAffinity != nil {
		path := pathOf("podAffinity", preferredField)
		if t.likesNear, err = weigh(pod, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, path); err != nil {
			return t, err
		}
	}
	if a != nil && a.PodAntiAffinity != nil {
		path := pathOf("podAntiAffinity", preferredField)
		t.dislikesNear, err = weigh(pod, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, path)
	}
	return t, err
}

// parse names the term that is wrong: the API server takes none such, but what was stored before its rules may be.
func parse(pod *corev1.Pod, list []corev1.PodAffinityTerm, path *field.Path) ([]fwk.AffinityTerm, error) {
	all := make([]fwk.AffinityTerm, 0, len(list))
	for i := range list {
		one, err := fwk.GetAffinityTerms(pod, list[i:i+1])
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", path.Index(i), err)
		}
		all = append(all, one...)
	}
	return all, nil
}

func weigh(pod *corev1.Pod, list []corev1.WeightedPodAffinityTerm, path *field.Path) ([]fwk.WeightedAffinityTerm, error) {
	all := make([]fwk.WeightedAffinityTerm, 0, len(list))
	for i := range list {
		one, err := fwk.GetWeightedAffinityTerms(pod, list[i:i+1])
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", path.Index(i).Child("podAffinityTerm"), err)
		}
		all = append(all, one...)
	}
	return all, nil
}

// resolve replaces selectors of namespaces by the names of those that they select now: pods are matched many times.
func (p *interPod) resolve(t *terms) error {
	for _, list := range [][]fwk.AffinityTerm{t.near, t.away} {
		for i := range list {
			if err := p.resolveTerm(&list[i]); err != nil {
				return err
			}
		}
	}
	for _, list := range [][]fwk.WeightedAffinityTerm{t.likesNear, t.dislikesNear} {
		for i := range list {
			if err := p.resolveTerm(&list[i].AffinityTerm); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *interPod) resolveTerm(t *fwk.AffinityTerm) error {
	if t.NamespaceSelector.Empty() {
		return nil // all namespaces: there is nothing to look up
	}
	if _, none := t.NamespaceSelector.Requirements(); !none {
		return nil // it selects nothing
	}
	selected, err := p.namespaces.List(t.NamespaceSelector)
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, ns := range selected {
		t.Namespaces.Insert(ns.Name)
	}
	t.NamespaceSelector = labels.Nothing()
	return nil
}

// matchesAll says of a pod that every term means it; no terms mean none.
func matchesAll(list []fwk.AffinityTerm, pod *corev1.Pod) bool {
	for i := range list {
		if !list[i].Matches(pod, nil) {
			return false
		}
	}
	return len(list) > 0
}
