package podautoscaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
)

// scaled is what an autoscaler's pods are.
type scaled struct {
	namespace string
	selector  labels.Selector
	pods      []*corev1.Pod
	// current is how many there are to be, running how many there are.
	current, running int32
	tolerance        tolerance
}

// proposal is what one metric asks for.
type proposal struct {
	replicas int32
	name     string
	status   autoscalingv2.MetricStatus
}

// failure is why a metric asks for nothing.
type failure struct {
	reason string
	err    error
}

// Error implements error.
func (f failure) Error() string { return f.err.Error() }

// Unwrap is for [errors.As].
func (f failure) Unwrap() error { return f.err }

// propose is what a metric asks for.
func (a *autoscaler) propose(ctx context.Context, of scaled, m autoscalingv2.MetricSpec) (proposal, error) {
	var p proposal
	var err error
	reason := "InvalidMetricSourceType"
	switch {
	case m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil:
		reason = "FailedGetResourceMetric"
		p, err = a.byResource(ctx, of, m.Resource.Name, m.Resource.Target, "")
	case m.Type == autoscalingv2.ContainerResourceMetricSourceType && m.ContainerResource != nil:
		reason = "FailedGetContainerResourceMetric"
		p, err = a.byResource(ctx, of, m.ContainerResource.Name, m.ContainerResource.Target, m.ContainerResource.Container)
	case m.Type == autoscalingv2.PodsMetricSourceType && m.Pods != nil:
		reason = "FailedGetPodsMetric"
		p, err = a.byPods(ctx, of, m.Pods)
	case m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil:
		reason = "FailedGetObjectMetric"
		p, err = a.byObject(ctx, of, m.Object)
	case m.Type == autoscalingv2.ExternalMetricSourceType && m.External != nil:
		reason = "FailedGetExternalMetric"
		p, err = a.byExternal(ctx, of, m.External)
	default:
		err = fmt.Errorf("unknown metric source type %q", m.Type)
	}
	if err != nil {
		return p, failure{reason, err}
	}
	return p, nil
}

func (a *autoscaler) byResource(ctx context.Context, of scaled, name corev1.ResourceName, target autoscalingv2.MetricTarget, container string) (proposal, error) {
	readings, err := a.sources.resource(ctx, name, of.namespace, of.selector, container)
	if err != nil {
		return proposal{}, fmt.Errorf("failed to get %s utilization: unable to get metrics for resource %s: %w", name, name, err)
	}
	what := fmt.Sprintf("%s resource", name)
	if container != "" {
		what = fmt.Sprintf("%s container resource", name)
	}
	var p proposal
	current := autoscalingv2.MetricValueStatus{}
	switch {
	case target.AverageValue != nil:
		p.replicas, err = a.count(of, readings, name, averaged(target.AverageValue.MilliValue()))
	case target.AverageUtilization != nil:
		what += " utilization (percentage of request)"
		var requests map[string]int64
		if requests, err = requestsOf(of.pods, container, name); err != nil {
			return p, fmt.Errorf("failed to get %s utilization: %w", name, err)
		}
		by := utilized(*target.AverageUtilization, requests)
		ratio := by.ratio
		first := true
		by.ratio = func(all map[string]reading) (float64, error) {
			if first { // of the pods that count, before anything is assumed of others
				first = false
				if percent, err := utilization(all, requests); err == nil {
					current.AverageUtilization = &percent
				}
			}
			return ratio(all)
		}
		p.replicas, err = a.count(of, readings, name, by)
	default:
		err = errors.New("invalid resource metric source: neither an average utilization nor an average value (usage) target was set")
	}
	if err != nil {
		return p, fmt.Errorf("failed to get %s utilization: %w", name, err)
	}
	current.AverageValue = milli(mean(readings))
	p.name = what
	p.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{Name: name, Current: current}}
	if container != "" {
		p.status = autoscalingv2.MetricStatus{
			Type:              autoscalingv2.ContainerResourceMetricSourceType,
			ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: name, Container: container, Current: current},
		}
	}
	return p, nil
}

// count is how many pods it takes by their readings.
func (a *autoscaler) count(of scaled, readings map[string]reading, resource corev1.ResourceName, by gauge) (int32, error) {
	if len(of.pods) == 0 {
		return 0, errors.New("no pods returned by selector while calculating replica count")
	}
	g := group(of.pods, readings, resource, a.now())
	if len(readings) == 0 {
		return 0, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	// What is assumed of others is not what was measured, which the status tells.
	return replicas(of.current, maps.Clone(readings), g, by, of.tolerance)
}

func (a *autoscaler) byPods(ctx context.Context, of scaled, m *autoscalingv2.PodsMetricSource) (proposal, error) {
	if m.Target.AverageValue == nil {
		return proposal{}, errors.New("failed to get pods metric value: it has no average value as its target")
	}
	readings, err := a.sources.pods(ctx, m.Metric, of.namespace, of.selector)
	if err != nil {
		return proposal{}, fmt.Errorf("failed to get pods metric value: unable to get metric %s: %w", m.Metric.Name, err)
	}
	n, err := a.count(of, readings, "", averaged(m.Target.AverageValue.MilliValue()))
	if err != nil {
		return proposal{}, fmt.Errorf("failed to get pods metric value: %w", err)
	}
	return proposal{n, "pods metric " + m.Metric.Name, autoscalingv2.MetricStatus{
		Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricStatus{Metric: m.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: milli(mean(readings))}},
	}}, nil
}

func (a *autoscaler) byObject(ctx context.Context, of scaled, m *autoscalingv2.ObjectMetricSource) (proposal, error) {
	value, err := a.sources.object(ctx, m.Metric, of.namespace, m.DescribedObject)
	if err != nil {
		return proposal{}, fmt.Errorf("failed to get object metric value: unable to get metric %s: %w", m.Metric.Name, err)
	}
	n, current, err := byValue(of, value, m.Target)
	if err != nil {
		return proposal{}, fmt.Errorf("failed to get object metric value: %w", err)
	}
	return proposal{n, "object metric " + m.Metric.Name, autoscalingv2.MetricStatus{
		Type:   autoscalingv2.ObjectMetricSourceType,
		Object: &autoscalingv2.ObjectMetricStatus{Metric: m.Metric, Current: current, DescribedObject: m.DescribedObject},
	}}, nil
}

func (a *autoscaler) byExternal(ctx context.Context, of scaled, m *autoscalingv2.ExternalMetricSource) (proposal, error) {
	value, err := a.sources.external(ctx, m.Metric, of.namespace)
	if err != nil {
		return proposal{}, fmt.Errorf("failed to get %s external metric value: unable to get external metric %s/%s: %w", m.Metric.Name, of.namespace, m.Metric.Name, err)
	}
	n, current, err := byValue(of, value, m.Target)
	if err != nil {
		return proposal{}, fmt.Errorf("failed to get %s external metric value: %w", m.Metric.Name, err)
	}
	s, _ := selector(m.Metric.Selector)
	return proposal{n, fmt.Sprintf("external metric %s(%s)", m.Metric.Name, s), autoscalingv2.MetricStatus{
		Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricStatus{Metric: m.Metric, Current: current},
	}}, nil
}

// byValue is how many pods it takes by a value that is no pod's: so many times those that work as it is the target, or
// one for each part of it.
func byValue(of scaled, value int64, target autoscalingv2.MetricTarget) (int32, autoscalingv2.MetricValueStatus, error) {
	switch {
	case target.Value != nil && target.Value.MilliValue() > 0:
		ratio := float64(value) / float64(target.Value.MilliValue())
		status := autoscalingv2.MetricValueStatus{Value: milli(value)}
		if of.tolerance.within(ratio) {
			return of.current, status, nil
		}
		if len(of.pods) == 0 {
			return 0, status, errors.New("unable to calculate ready pods: no pods returned by selector while calculating replica count")
		}
		return ceil(ratio * float64(readyPods(of.pods))), status, nil
	case target.AverageValue != nil && target.AverageValue.MilliValue() > 0:
		n := of.running
		each := float64(value) / float64(max(n, 1))
		if ratio := each / float64(target.AverageValue.MilliValue()); n == 0 || !of.tolerance.within(ratio) {
			n = ceil(float64(value) / float64(target.AverageValue.MilliValue()))
		}
		return n, autoscalingv2.MetricValueStatus{AverageValue: milli(int64(min(math.Ceil(each), 1<<62)))}, nil
	}
	return 0, autoscalingv2.MetricValueStatus{}, errors.New("neither a value target nor an average value target was set")
}

func milli(v int64) *resource.Quantity { return resource.NewMilliQuantity(v, resource.DecimalSI) }
