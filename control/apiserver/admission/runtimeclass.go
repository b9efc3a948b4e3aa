package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"
)

// newRuntimeClass gives pods what their runtime class costs and where it is to be had, and refuses those that claim
// another cost.
func newRuntimeClass(g given) (checks, error) {
	classes := g.informers.Node().V1().RuntimeClasses()
	lister := classes.Lister()
	find := func(ctx context.Context, a admission.Attributes, pod *corev1.Pod) (*nodev1.RuntimeClass, error) {
		if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
			return nil, nil // a pod may have none
		}
		name := *pod.Spec.RuntimeClassName
		class, err := lister.Get(name)
		if apierrors.IsNotFound(err) { // it may be too new for the informers
			class, err = g.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil, forbid(a, "pod rejected: RuntimeClass %q not found", name)
		} else if err != nil {
			return nil, admission.NewForbidden(a, fmt.Errorf("find RuntimeClass %s: %w", name, err))
		}
		return class, nil
	}
	return checks{
		operations: onCreate(), resources: []string{"pods"}, synced: []cache.InformerSynced{classes.Informer().HasSynced},
		admit: on(func(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
			class, err := find(ctx, a, pod)
			if err != nil || class == nil {
				return err
			}
			if class.Overhead != nil {
				if pod.Spec.Overhead != nil && !equality.Semantic.DeepEqual(pod.Spec.Overhead, class.Overhead.PodFixed) {
					return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
				}
				pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
			}
			return schedule(a, pod, class.Scheduling)
		}),
		validate: on(func(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
			class, err := find(ctx, a, pod)
			if err != nil {
				return err
			}
			var want corev1.ResourceList
			if class != nil && class.Overhead != nil {
				want = class.Overhead.PodFixed
			}
			if !equality.Semantic.DeepEqual(pod.Spec.Overhead, want) && len(pod.Spec.Overhead)+len(want) > 0 {
				return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
			}
			return nil
		}),
	}, nil
}

// schedule sends a pod to the nodes that have its runtime.
func schedule(a admission.Attributes, pod *corev1.Pod, s *nodev1.Scheduling) error {
	if s == nil {
		return nil
	}
	for key, value := range s.NodeSelector {
		if have, has := pod.Spec.NodeSelector[key]; has && have != value {
			return forbid(a, "conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, have)
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[key] = value
	}
	for _, t := range s.Tolerations {
		known := false
		for i := range pod.Spec.Tolerations {
			known = known || equality.Semantic.DeepEqual(pod.Spec.Tolerations[i], t)
		}
		if !known {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
		}
	}
	return nil
}
