package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// OnRequest are the versions that are served only where the configuration asks for them: as with Kubernetes, what is
// beta and has come after 1.24.
func OnRequest() []schema.GroupVersion {
	return []schema.GroupVersion{schedulingv1beta1.SchemeGroupVersion}
}

func podGroupRows() []resource {
	return []resource{
		{name: "workloads", object: &schedulingv1beta1.Workload{}, list: &schedulingv1beta1.WorkloadList{}, traits: namespaced | counted},
		{
			name: "podgroups", object: &schedulingv1beta1.PodGroup{}, list: &schedulingv1beta1.PodGroupList{}, traits: namespaced | status | counted,
			columns: podGroupColumns(), hooks: hooks{create: createPodGroup},
		},
	}
}

// createPodGroup takes away what belongs to a feature that is off by default.
func createPodGroup(_ context.Context, o runtime.Object) {
	o.(*schedulingv1beta1.PodGroup).Spec.ResourceClaims = nil
}

func podGroupColumns() []column {
	return []column{
		col("Policy", "string", func(o *schedulingv1beta1.PodGroup) any {
			if o.Spec.SchedulingPolicy.Gang != nil {
				return "Gang"
			}
			return "Basic"
		}),
		col("Initially-Scheduled", "string", func(o *schedulingv1beta1.PodGroup) any {
			if c := meta.FindStatusCondition(o.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled); c != nil {
				return string(c.Status)
			}
			return "Unknown"
		}),
		ageHere(),
	}
}

// createPodWithout makes new pods that are of no group, where there are no groups.
func createPodWithout(ctx context.Context, o runtime.Object) {
	o.(*corev1.Pod).Spec.SchedulingGroup = nil
	createPod(ctx, o)
}
