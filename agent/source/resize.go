package source

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/source/manifest"
	"github.com/berth-node/berth/cgroups/kube"
)

// succeed makes the claim go on with the pod that is there for its key, when all that its manifest asks for can be done
// to a pod that runs: nothing but CPU and memory has changed, and not so far that the pod would be of another QoS
// class. Any other change makes it another pod.
func (s *Source) succeed(f *file, c *manifest.Item) {
	old := f.claim(c.Ref)
	if old == nil {
		// The manifest may have been renamed at the same time.
		if holders := s.claims[c.Ref]; len(holders) > 0 && s.files[holders[0]] != nil {
			old = s.files[holders[0]].claim(c.Ref)
		}
	}
	if old == nil || c.Pod == nil || old.Pod.UID == c.Pod.UID || old.Hash != c.Hash && !onlyResized(old.Pod, c.Pod) {
		return
	}
	c.Pod.UID = old.Pod.UID
}

// onlyResized says whether two pods differ in nothing but resources that can change while they run.
func onlyResized(a, b *corev1.Pod) bool {
	return kube.QoS(a) == kube.QoS(b) && equality.Semantic.DeepEqual(withoutResources(a), withoutResources(b))
}

// withoutResources is the pod without what a resize changes, and without what tells one version of its manifest from
// another.
func withoutResources(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.UID = ""
	delete(out.Annotations, desired.AnnotationHash)
	delete(out.Annotations, desired.AnnotationSeen)
	strip := func(r *corev1.ResourceRequirements) {
		for _, l := range []*corev1.ResourceList{&r.Requests, &r.Limits} {
			delete(*l, corev1.ResourceCPU)
			delete(*l, corev1.ResourceMemory)
			if len(*l) == 0 {
				*l = nil
			}
		}
	}
	for i := range out.Spec.Containers {
		strip(&out.Spec.Containers[i].Resources)
		out.Spec.Containers[i].ResizePolicy = completed(out.Spec.Containers[i].ResizePolicy)
	}
	for i := range out.Spec.InitContainers {
		// An init container that is no sidecar is over before anything can change.
		if p := out.Spec.InitContainers[i].RestartPolicy; p != nil && *p == corev1.ContainerRestartPolicyAlways {
			strip(&out.Spec.InitContainers[i].Resources)
			out.Spec.InitContainers[i].ResizePolicy = completed(out.Spec.InitContainers[i].ResizePolicy)
		}
	}
	if out.Spec.Resources != nil {
		strip(out.Spec.Resources)
	}
	return out
}

// completed says of CPU and memory what is true when nothing is said: defaults are set only for what a container asks
// for.
func completed(policy []corev1.ContainerResizePolicy) []corev1.ContainerResizePolicy {
	out := []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
		{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.NotRequired},
	}
	for _, p := range policy {
		for i := range out {
			if out[i].ResourceName == p.ResourceName {
				out[i].RestartPolicy = p.RestartPolicy
			}
		}
	}
	return out
}
