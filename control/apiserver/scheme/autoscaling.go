package scheme

import (
	"encoding/json"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// autoscaling/v1 knows one metric, the utilization of CPU. What else an autoscaler has is kept in annotations.
const (
	metricsAnnotation    = "autoscaling.alpha.kubernetes.io/metrics"
	currentAnnotation    = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation   = "autoscaling.alpha.kubernetes.io/behavior"
)

func addAutoscaling(s *runtime.Scheme) error {
	type (
		v1     = autoscalingv1.HorizontalPodAutoscaler
		v2     = autoscalingv2.HorizontalPodAutoscaler
		v1List = autoscalingv1.HorizontalPodAutoscalerList
		v2List = autoscalingv2.HorizontalPodAutoscalerList
	)
	return register(s,
		pair[v1, v2](scalerToHub), pair[v2, v1](scalerFromHub),
		pair[v1List, v2List](func(in *v1List, out *v2List) { out.ListMeta, out.Items = in.ListMeta, each(in.Items, scalerToHub) }),
		pair[v2List, v1List](func(in *v2List, out *v1List) { out.ListMeta, out.Items = in.ListMeta, each(in.Items, scalerFromHub) }),
	)
}

func scalerToHub(in *autoscalingv1.HorizontalPodAutoscaler, out *autoscalingv2.HorizontalPodAutoscaler) {
	out.ObjectMeta = in.ObjectMeta
	out.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
	}
	out.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
		ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
	}
	// What cannot be read of an annotation is as if it were not there: a client of the old version may write anything.
	fromAnnotation(in.Annotations, behaviorAnnotation, &out.Spec.Behavior)
	fromAnnotation(in.Annotations, metricsAnnotation, &out.Spec.Metrics)
	fromAnnotation(in.Annotations, currentAnnotation, &out.Status.CurrentMetrics)
	fromAnnotation(in.Annotations, conditionsAnnotation, &out.Status.Conditions)
	if p := in.Spec.TargetCPUUtilizationPercentage; p != nil {
		cpu := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: p},
		}}
		out.Spec.Metrics = append([]autoscalingv2.MetricSpec{cpu}, out.Spec.Metrics...)
	}
	if p := in.Status.CurrentCPUUtilizationPercentage; p != nil {
		cpu := autoscalingv2.MetricStatus{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
			Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: p},
		}}
		out.Status.CurrentMetrics = append([]autoscalingv2.MetricStatus{cpu}, out.Status.CurrentMetrics...)
	}
	out.Annotations = maps.Clone(in.Annotations)
	for _, a := range []string{metricsAnnotation, currentAnnotation, conditionsAnnotation, behaviorAnnotation} {
		delete(out.Annotations, a)
	}
}

func scalerFromHub(in *autoscalingv2.HorizontalPodAutoscaler, out *autoscalingv1.HorizontalPodAutoscaler) {
	out.ObjectMeta = in.ObjectMeta
	out.Spec = autoscalingv1.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
	}
	out.Status = autoscalingv1.HorizontalPodAutoscalerStatus{
		ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
	}
	var metrics []autoscalingv2.MetricSpec
	for _, m := range in.Spec.Metrics {
		if m.Resource != nil && m.Resource.Name == corev1.ResourceCPU && m.Resource.Target.AverageUtilization != nil &&
			out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
			continue
		}
		metrics = append(metrics, m)
	}
	var current []autoscalingv2.MetricStatus
	for _, m := range in.Status.CurrentMetrics {
		if m.Resource != nil && m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil &&
			out.Status.CurrentCPUUtilizationPercentage == nil {
			out.Status.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
			continue
		}
		current = append(current, m)
	}
	out.Annotations = maps.Clone(in.Annotations)
	toAnnotation(&out.Annotations, metricsAnnotation, metrics, len(metrics) > 0)
	toAnnotation(&out.Annotations, currentAnnotation, current, len(current) > 0)
	toAnnotation(&out.Annotations, conditionsAnnotation, in.Status.Conditions, len(in.Status.Conditions) > 0)
	toAnnotation(&out.Annotations, behaviorAnnotation, in.Spec.Behavior, in.Spec.Behavior != nil)
}

func fromAnnotation[T any](annotations map[string]string, name string, to *T) {
	var v T
	if text, ok := annotations[name]; ok && json.Unmarshal([]byte(text), &v) == nil {
		*to = v
	}
}

func toAnnotation(annotations *map[string]string, name string, v any, given bool) {
	if !given {
		return
	}
	data, err := json.Marshal(v)
	if err != nil {
		return // of a type of the API, which is always written
	}
	if *annotations == nil {
		*annotations = map[string]string{}
	}
	(*annotations)[name] = string(data)
}
