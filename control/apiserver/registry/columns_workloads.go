package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

func templateColumns[T any, P interface {
	*T
	metav1.Object
}](get func(*T) (*corev1.PodTemplateSpec, *metav1.LabelSelector)) (names, images, selector func(*T) any) {
	pick := func(of func(corev1.Container) string) func(*T) any {
		return func(o *T) any {
			var all []string
			if t, _ := get(o); t != nil {
				for _, c := range t.Spec.Containers {
					all = append(all, of(c))
				}
			}
			return strings.Join(all, ",")
		}
	}
	return pick(func(c corev1.Container) string { return c.Name }), pick(func(c corev1.Container) string { return c.Image }),
		func(o *T) any {
			_, s := get(o)
			return orNone(metav1.FormatLabelSelector(s))
		}
}

func deploymentColumns() []column {
	type kind = appsv1.Deployment
	names, images, selector := templateColumns[kind](func(o *kind) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return &o.Spec.Template, o.Spec.Selector
	})
	return []column{
		col("Ready", "string", func(o *kind) any { return fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, deref(o.Spec.Replicas)) }),
		col("Up-to-date", "string", func(o *kind) any { return int64(o.Status.UpdatedReplicas) }),
		col("Available", "string", func(o *kind) any { return int64(o.Status.AvailableReplicas) }),
		wide(col("Containers", "string", names)), wide(col("Images", "string", images)), wide(col("Selector", "string", selector)),
	}
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

func replicaSetColumns() []column {
	type kind = appsv1.ReplicaSet
	names, images, selector := templateColumns[kind](func(o *kind) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return &o.Spec.Template, o.Spec.Selector
	})
	return []column{
		col("Desired", "integer", func(o *kind) any { return int64(deref(o.Spec.Replicas)) }),
		col("Current", "integer", func(o *kind) any { return int64(o.Status.Replicas) }),
		col("Ready", "integer", func(o *kind) any { return int64(o.Status.ReadyReplicas) }),
		wide(col("Containers", "string", names)), wide(col("Images", "string", images)), wide(col("Selector", "string", selector)),
	}
}

func controllerColumns() []column {
	type kind = corev1.ReplicationController
	names, images, selector := templateColumns[kind](func(o *kind) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return o.Spec.Template, metav1.SetAsLabelSelector(o.Spec.Selector)
	})
	return []column{
		col("Desired", "integer", func(o *kind) any { return int64(deref(o.Spec.Replicas)) }),
		col("Current", "integer", func(o *kind) any { return int64(o.Status.Replicas) }),
		col("Ready", "integer", func(o *kind) any { return int64(o.Status.ReadyReplicas) }),
		wide(col("Containers", "string", names)), wide(col("Images", "string", images)), wide(col("Selector", "string", selector)),
	}
}

func statefulSetColumns() []column {
	type kind = appsv1.StatefulSet
	names, images, _ := templateColumns[kind](func(o *kind) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return &o.Spec.Template, o.Spec.Selector
	})
	return []column{
		col("Ready", "string", func(o *kind) any { return fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, deref(o.Spec.Replicas)) }),
		wide(col("Containers", "string", names)), wide(col("Images", "string", images)),
	}
}

func daemonSetColumns() []column {
	type kind = appsv1.DaemonSet
	names, images, selector := templateColumns[kind](func(o *kind) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return &o.Spec.Template, o.Spec.Selector
	})
	return []column{
		col("Desired", "integer", func(o *kind) any { return int64(o.Status.DesiredNumberScheduled) }),
		col("Current", "integer", func(o *kind) any { return int64(o.Status.CurrentNumberScheduled) }),
		col("Ready", "integer", func(o *kind) any { return int64(o.Status.NumberReady) }),
		col("Up-to-date", "integer", func(o *kind) any { return int64(o.Status.UpdatedNumberScheduled) }),
		col("Available", "integer", func(o *kind) any { return int64(o.Status.NumberAvailable) }),
		col("Node Selector", "string", func(o *kind) any { return pairs(o.Spec.Template.Spec.NodeSelector) }),
		wide(col("Containers", "string", names)), wide(col("Images", "string", images)), wide(col("Selector", "string", selector)),
	}
}

// pairs are labels, in their order.
func pairs(labels map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, k+"="+labels[k])
	}
	return listed(all)
}

func revisionColumns() []column {
	return []column{
		col("Controller", "string", func(o *appsv1.ControllerRevision) any {
			if c := metav1.GetControllerOf(o); c != nil {
				group, _, _ := strings.Cut(c.APIVersion, "/")
				return strings.ToLower(c.Kind) + "." + group + "/" + c.Name
			}
			return none
		}),
		col("Revision", "string", func(o *appsv1.ControllerRevision) any { return o.Revision }),
	}
}

func podTemplateColumns() []column {
	names, images, _ := templateColumns[corev1.PodTemplate](func(o *corev1.PodTemplate) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return &o.Template, nil
	})
	return []column{
		col("Containers", "string", names), col("Images", "string", images),
		col("Pod Labels", "string", func(o *corev1.PodTemplate) any { return pairs(o.Template.Labels) }), noAge(),
	}
}

func jobColumns() []column {
	type kind = batchv1.Job
	names, images, selector := templateColumns[kind](func(o *kind) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return &o.Spec.Template, o.Spec.Selector
	})
	return []column{
		col("Status", "string", jobStatus),
		col("Completions", "string", func(o *kind) any {
			switch {
			case o.Spec.Completions != nil:
				return fmt.Sprintf("%d/%d", o.Status.Succeeded, *o.Spec.Completions)
			case deref(o.Spec.Parallelism) > 1:
				return fmt.Sprintf("%d/1 of %d", o.Status.Succeeded, *o.Spec.Parallelism)
			}
			return fmt.Sprintf("%d/1", o.Status.Succeeded)
		}),
		col("Duration", "string", func(o *kind) any {
			switch {
			case o.Status.StartTime == nil:
				return ""
			case o.Status.CompletionTime == nil:
				return duration.HumanDuration(time.Since(o.Status.StartTime.Time))
			}
			return duration.HumanDuration(o.Status.CompletionTime.Sub(o.Status.StartTime.Time))
		}),
		wide(col("Containers", "string", names)), wide(col("Images", "string", images)), wide(col("Selector", "string", selector)),
	}
}

func jobStatus(o *batchv1.Job) any {
	is := func(t batchv1.JobConditionType) bool {
		return slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == t && c.Status == corev1.ConditionTrue
		})
	}
	switch {
	case is(batchv1.JobComplete):
		return "Complete"
	case is(batchv1.JobFailed):
		return "Failed"
	case o.DeletionTimestamp != nil:
		return "Terminating"
	case is(batchv1.JobSuspended):
		return "Suspended"
	case is(batchv1.JobFailureTarget):
		return "FailureTarget"
	case is(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func cronJobColumns() []column {
	type kind = batchv1.CronJob
	names, images, selector := templateColumns[kind](func(o *kind) (*corev1.PodTemplateSpec, *metav1.LabelSelector) {
		return &o.Spec.JobTemplate.Spec.Template, o.Spec.JobTemplate.Spec.Selector
	})
	return []column{
		col("Schedule", "string", func(o *kind) any { return o.Spec.Schedule }),
		col("Timezone", "string", func(o *kind) any { return or(o.Spec.TimeZone, none) }),
		col("Suspend", "boolean", func(o *kind) any {
			if o.Spec.Suspend == nil {
				return unset
			}
			return map[bool]string{true: "True", false: "False"}[*o.Spec.Suspend]
		}),
		col("Active", "integer", func(o *kind) any { return int64(len(o.Status.Active)) }),
		col("Last Schedule", "string", func(o *kind) any {
			if o.Status.LastScheduleTime == nil {
				return none
			}
			return since(*o.Status.LastScheduleTime)
		}),
		wide(col("Containers", "string", names)), wide(col("Images", "string", images)), wide(col("Selector", "string", selector)),
	}
}

func autoscalerColumns() []column {
	type kind = autoscalingv2.HorizontalPodAutoscaler
	return []column{
		col("Reference", "string", func(o *kind) any { return o.Spec.ScaleTargetRef.Kind + "/" + o.Spec.ScaleTargetRef.Name }),
		col("Targets", "string", autoscalerTargets),
		col("MinPods", "string", func(o *kind) any { return or(o.Spec.MinReplicas, unset) }),
		col("MaxPods", "string", func(o *kind) any { return int64(o.Spec.MaxReplicas) }),
		col("Replicas", "string", func(o *kind) any { return int64(o.Status.CurrentReplicas) }),
	}
}

// autoscalerTargets has what each metric is and is to be.
func autoscalerTargets(o *autoscalingv2.HorizontalPodAutoscaler) any {
	var all []string
	for i, m := range o.Spec.Metrics {
		if len(all) == 2 && len(o.Spec.Metrics) > 2 {
			all = append(all, fmt.Sprintf("%d more...", len(o.Spec.Metrics)-2))
			break
		}
		name, target, current := string(m.Type), autoscalingv2.MetricTarget{}, autoscalingv2.MetricValueStatus{}
		has := i < len(o.Status.CurrentMetrics)
		switch {
		case m.Resource != nil:
			name, target = string(m.Resource.Name), m.Resource.Target
			if has && o.Status.CurrentMetrics[i].Resource != nil {
				current = o.Status.CurrentMetrics[i].Resource.Current
			}
		case m.ContainerResource != nil:
			name, target = string(m.ContainerResource.Name), m.ContainerResource.Target
			if has && o.Status.CurrentMetrics[i].ContainerResource != nil {
				current = o.Status.CurrentMetrics[i].ContainerResource.Current
			}
		case m.Pods != nil:
			name, target = "", m.Pods.Target
			if has && o.Status.CurrentMetrics[i].Pods != nil {
				current = o.Status.CurrentMetrics[i].Pods.Current
			}
		case m.Object != nil:
			name, target = "", m.Object.Target
			if has && o.Status.CurrentMetrics[i].Object != nil {
				current = o.Status.CurrentMetrics[i].Object.Current
			}
		case m.External != nil:
			name, target = "", m.External.Target
			if has && o.Status.CurrentMetrics[i].External != nil {
				current = o.Status.CurrentMetrics[i].External.Current
			}
		}
		text := amount(current.AverageUtilization, current.AverageValue, current.Value) + "/" +
			amount(target.AverageUtilization, target.AverageValue, target.Value)
		if name != "" {
			text = name + ": " + text
		}
		all = append(all, text)
	}
	return orNone(strings.Join(all, ", "))
}

func amount(percent *int32, quantities ...interface{ String() string }) string {
	if percent != nil {
		return fmt.Sprintf("%d%%", *percent)
	}
	for _, q := range quantities {
		if text := q.String(); text != "<nil>" {
			return text
		}
	}
	return unknown
}
