package cluster

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PodInfo is a pod with what of it is asked for again and again. It does not change.
type PodInfo struct {
	pod *corev1.Pod

	affinity, antiAffinity           []fwk.AffinityTerm
	likesAffinity, likesAntiAffinity []fwk.WeightedAffinityTerm

	resources fwk.PodResource
}

var _ fwk.PodInfo = (*PodInfo)(nil)

// NewPodInfo reads a pod. Of terms of affinity that cannot be read it has an error, and the pod without them.
func NewPodInfo(pod *corev1.Pod) (*PodInfo, error) {
	p := &PodInfo{pod: pod, resources: resourcesOf(pod)}
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.PodAffinity == nil && affinity.PodAntiAffinity == nil {
		return p, nil
	}
	var likes, dislikes []corev1.WeightedPodAffinityTerm
	if a := affinity.PodAffinity; a != nil {
		likes = a.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if a := affinity.PodAntiAffinity; a != nil {
		dislikes = a.PreferredDuringSchedulingIgnoredDuringExecution
	}
	var errs [4]error
	p.affinity, errs[0] = fwk.GetAffinityTerms(pod, fwk.GetPodAffinityTerms(affinity))
	p.antiAffinity, errs[1] = fwk.GetAffinityTerms(pod, fwk.GetPodAntiAffinityTerms(affinity))
	p.likesAffinity, errs[2] = fwk.GetWeightedAffinityTerms(pod, likes)
	p.likesAntiAffinity, errs[3] = fwk.GetWeightedAffinityTerms(pod, dislikes)
	if err := errors.Join(errs[:]...); err != nil {
		return p, fmt.Errorf("read affinity of pod: %w", err)
	}
	return p, nil
}

// WithPod is the same for a pod that has changed in nothing that was read of it, as one that was given a node.
func (p *PodInfo) WithPod(pod *corev1.Pod) *PodInfo {
	c := *p
	c.pod = pod
	return &c
}

// GetPod implements [fwk.PodInfo].
func (p *PodInfo) GetPod() *corev1.Pod { return p.pod }

// GetRequiredAffinityTerms implements [fwk.PodInfo].
func (p *PodInfo) GetRequiredAffinityTerms() []fwk.AffinityTerm { return p.affinity }

// GetRequiredAntiAffinityTerms implements [fwk.PodInfo].
func (p *PodInfo) GetRequiredAntiAffinityTerms() []fwk.AffinityTerm { return p.antiAffinity }

// GetPreferredAffinityTerms implements [fwk.PodInfo].
func (p *PodInfo) GetPreferredAffinityTerms() []fwk.WeightedAffinityTerm { return p.likesAffinity }

// GetPreferredAntiAffinityTerms implements [fwk.PodInfo].
func (p *PodInfo) GetPreferredAntiAffinityTerms() []fwk.WeightedAffinityTerm {
	return p.likesAntiAffinity
}

// CalculateResource implements [fwk.PodInfo].
func (p *PodInfo) CalculateResource() fwk.PodResource { return p.resources }

func hasAffinity(p fwk.PodInfo) bool {
	return len(p.GetRequiredAffinityTerms()) > 0 || len(p.GetRequiredAntiAffinityTerms()) > 0 ||
		len(p.GetPreferredAffinityTerms()) > 0 || len(p.GetPreferredAntiAffinityTerms()) > 0
}

// beyondHost says whether a pod keeps others away from more than its own node.
func beyondHost(p fwk.PodInfo) bool {
	for _, term := range p.GetRequiredAntiAffinityTerms() {
		if term.TopologyKey != corev1.LabelHostname {
			return true
		}
	}
	return false
}
