package podautoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	metricsTimeout = 10 * time.Second
	// window is how long a metric is measured that does not say it.
	window = time.Minute
)

// sources are the servers of metrics, by the API.
type sources struct {
	client rest.Interface
	mapper meta.RESTMapper
}

func (s *sources) get(ctx context.Context, into any, query map[string]string, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	r := s.client.Get().AbsPath(path...)
	for k, v := range query {
		if v != "" {
			r = r.Param(k, v)
		}
	}
	body, err := r.SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// resource is what pods use, or one container of each does.
func (s *sources) resource(ctx context.Context, name corev1.ResourceName, namespace string, pods labels.Selector, container string) (map[string]reading, error) {
	var list v1beta1.PodMetricsList
	err := s.get(ctx, &list, map[string]string{"labelSelector": pods.String()}, "apis", "metrics.k8s.io", "v1beta1", "namespaces", namespace, "pods")
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	all := map[string]reading{}
	for _, m := range list.Items {
		sum, found, whole := int64(0), false, true
		for _, c := range m.Containers {
			if container != "" && c.Name != container {
				continue
			}
			q, ok := c.Usage[name]
			if !ok {
				whole = false
				break
			}
			sum, found = plus(sum, q.MilliValue()), true
		}
		if found && whole {
			all[m.Name] = reading{sum, m.Timestamp.Time, m.Window.Duration}
		}
	}
	if len(all) == 0 && container != "" {
		return nil, fmt.Errorf("container %s not present in metrics for pods of %s/%s", container, namespace, pods)
	}
	return all, nil
}

// customList is a list of values of either version of the API.
type customList struct {
	Items []struct {
		DescribedObject struct {
			Name string `json:"name"`
		} `json:"describedObject"`
		Timestamp     metav1.Time       `json:"timestamp"`
		WindowSeconds *int64            `json:"windowSeconds"`
		Value         resource.Quantity `json:"value"`
	} `json:"items"`
}

// custom asks for a metric of objects, by the newest version that is served.
func (s *sources) custom(ctx context.Context, query map[string]string, path ...string) (*customList, error) {
	for _, version := range []string{"v1beta2", "v1beta1"} {
		var list customList
		err := s.get(ctx, &list, query, append([]string{"apis", "custom.metrics.k8s.io", version}, path...)...)
		if apierrors.IsNotFound(err) && version == "v1beta2" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
		}
		if len(list.Items) == 0 {
			return nil, errors.New("no metrics returned from custom metrics API")
		}
		return &list, nil
	}
	return nil, errors.New("unable to fetch metrics from custom metrics API: no such API")
}

// pods is a metric that pods have.
func (s *sources) pods(ctx context.Context, m autoscalingv2.MetricIdentifier, namespace string, pods labels.Selector) (map[string]reading, error) {
	of, err := selector(m.Selector)
	if err != nil {
		return nil, err
	}
	list, err := s.custom(ctx, map[string]string{"labelSelector": pods.String(), "metricLabelSelector": of}, "namespaces", namespace, "pods", "*", m.Name)
	if err != nil {
		return nil, err
	}
	all := map[string]reading{}
	for _, i := range list.Items {
		r := reading{i.Value.MilliValue(), i.Timestamp.Time, window}
		if i.WindowSeconds != nil {
			r.window = time.Duration(*i.WindowSeconds) * time.Second
		}
		all[i.DescribedObject.Name] = r
	}
	return all, nil
}

// object is a metric of one object.
func (s *sources) object(ctx context.Context, m autoscalingv2.MetricIdentifier, namespace string, ref autoscalingv2.CrossVersionObjectReference) (int64, error) {
	of, err := selector(m.Selector)
	if err != nil {
		return 0, err
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return 0, fmt.Errorf("invalid API version in object reference: %w", err)
	}
	path := []string{"namespaces", ref.Name, "metrics", m.Name}
	if ref.Kind != "Namespace" || gv.Group != "" {
		mapping, err := s.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, gv.Version)
		if err != nil {
			return 0, fmt.Errorf("find resource of %s: %w", ref.Kind, err)
		}
		path = []string{mapping.Resource.GroupResource().String(), ref.Name, m.Name}
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			path = append([]string{"namespaces", namespace}, path...)
		}
	}
	list, err := s.custom(ctx, map[string]string{"metricLabelSelector": of}, path...)
	if err != nil {
		return 0, err
	}
	return list.Items[0].Value.MilliValue(), nil
}

// external is the sum of a metric that no object of the cluster has.
func (s *sources) external(ctx context.Context, m autoscalingv2.MetricIdentifier, namespace string) (int64, error) {
	of, err := selector(m.Selector)
	if err != nil {
		return 0, err
	}
	var list struct {
		Items []struct {
			Value resource.Quantity `json:"value"`
		} `json:"items"`
	}
	err = s.get(ctx, &list, map[string]string{"labelSelector": of}, "apis", "external.metrics.k8s.io", "v1beta1", "namespaces", namespace, m.Name)
	if err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, errors.New("no metrics returned from external metrics API")
	}
	sum := int64(0)
	for _, i := range list.Items {
		sum = plus(sum, i.Value.MilliValue())
	}
	return sum, nil
}

func selector(s *metav1.LabelSelector) (string, error) {
	if s == nil {
		return "", nil
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", fmt.Errorf("read selector of metric: %w", err)
	}
	return parsed.String(), nil
}
