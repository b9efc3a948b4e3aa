package metrics

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// parallel is how many nodes are asked at once for one request.
const parallel = 32

// Options are what the group is served with.
type Options struct {
	Nodes corelisters.NodeLister
	Pods  corelisters.PodLister
	// Address is where the kubelet of a node is, Transport how it is spoken to.
	Address   func(*corev1.Node) (*url.URL, error)
	Transport func() http.RoundTripper
	Log       *slog.Logger
}

// Storage are the resources of the group.
func Storage(o Options) map[string]rest.Storage {
	s := newSampler(o.Address, o.Transport, o.Log)
	return map[string]rest.Storage{"nodes": &nodesREST{o.Nodes, s}, "pods": &podsREST{o.Nodes, o.Pods, s}}
}

// all asks nodes, and returns the answers of those that gave any, by name.
func (s *sampler) all(ctx context.Context, nodes []*corev1.Node) map[string]pair {
	got := map[string]pair{}
	var mu sync.Mutex
	var group sync.WaitGroup
	room := make(chan struct{}, parallel)
	for _, n := range nodes {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			if p, err := s.of(ctx, n); err == nil {
				mu.Lock()
				got[n.Name] = p
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return got
}

// nodesREST tells what nodes use.
type nodesREST struct {
	nodes   corelisters.NodeLister
	sampler *sampler
}

// New implements [rest.Storage].
func (*nodesREST) New() runtime.Object { return &v1beta1.NodeMetrics{} }

// NewList implements [rest.Lister].
func (*nodesREST) NewList() runtime.Object { return &v1beta1.NodeMetricsList{} }

// Destroy implements [rest.Storage].
func (*nodesREST) Destroy() {}

// NamespaceScoped implements [rest.Scoper].
func (*nodesREST) NamespaceScoped() bool { return false }

// GetSingularName implements [rest.SingularNameProvider].
func (*nodesREST) GetSingularName() string { return "" }

// Get implements [rest.Getter].
func (r *nodesREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	n, err := r.nodes.Get(name)
	if err != nil {
		return nil, apierrors.NewNotFound(v1beta1.Resource("nodes"), name)
	}
	if got := r.of(ctx, []*corev1.Node{n}); len(got) == 1 {
		return &got[0], nil
	}
	return nil, apierrors.NewNotFound(v1beta1.Resource("nodes"), name)
}

// List implements [rest.Lister].
func (r *nodesREST) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(o)
	all, err := r.nodes.List(byLabel)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	r.sampler.keep(func(name string) bool { _, err := r.nodes.Get(name); return err == nil })
	all = slices.DeleteFunc(all, func(n *corev1.Node) bool { return !byField.Matches(fields.Set{metav1.ObjectNameField: n.Name}) })
	return &v1beta1.NodeMetricsList{Items: r.of(ctx, all)}, nil
}

func (r *nodesREST) of(ctx context.Context, nodes []*corev1.Node) []v1beta1.NodeMetrics {
	all := []v1beta1.NodeMetrics{}
	got := r.sampler.all(ctx, nodes)
	for _, n := range nodes {
		p, ok := got[n.Name]
		if !ok {
			continue
		}
		if u, ok := p.node(); ok {
			all = append(all, v1beta1.NodeMetrics{
				ObjectMeta: metaOf(n), Timestamp: metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window}, Usage: u.used,
			})
		}
	}
	slices.SortFunc(all, func(a, b v1beta1.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// ConvertToTable implements [rest.TableConvertor].
func (*nodesREST) ConvertToTable(_ context.Context, o, _ runtime.Object) (*metav1.Table, error) {
	return table(o)
}

// podsREST tells what pods use.
type podsREST struct {
	nodes   corelisters.NodeLister
	pods    corelisters.PodLister
	sampler *sampler
}

// New implements [rest.Storage].
func (*podsREST) New() runtime.Object { return &v1beta1.PodMetrics{} }

// NewList implements [rest.Lister].
func (*podsREST) NewList() runtime.Object { return &v1beta1.PodMetricsList{} }

// Destroy implements [rest.Storage].
func (*podsREST) Destroy() {}

// NamespaceScoped implements [rest.Scoper].
func (*podsREST) NamespaceScoped() bool { return true }

// GetSingularName implements [rest.SingularNameProvider].
func (*podsREST) GetSingularName() string { return "" }

// Get implements [rest.Getter].
func (r *podsREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	p, err := r.pods.Pods(request.NamespaceValue(ctx)).Get(name)
	if err == nil {
		if got := r.of(ctx, []*corev1.Pod{p}); len(got) == 1 {
			return &got[0], nil
		}
	}
	return nil, apierrors.NewNotFound(v1beta1.Resource("pods"), name)
}

// List implements [rest.Lister].
func (r *podsREST) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	byLabel, byField := selectors(o)
	all, err := r.pods.Pods(request.NamespaceValue(ctx)).List(byLabel)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	all = slices.DeleteFunc(all, func(p *corev1.Pod) bool {
		return !byField.Matches(fields.Set{metav1.ObjectNameField: p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName})
	})
	return &v1beta1.PodMetricsList{Items: r.of(ctx, all)}, nil
}

// of tells of pods that run. Only their nodes are asked.
func (r *podsREST) of(ctx context.Context, pods []*corev1.Pod) []v1beta1.PodMetrics {
	nodes := map[string]*corev1.Node{}
	for _, p := range pods {
		if n, err := r.nodes.Get(p.Spec.NodeName); err == nil && p.Status.Phase == corev1.PodRunning {
			nodes[n.Name] = n
		}
	}
	used := map[string]map[podName]map[string]usage{}
	for name, two := range r.sampler.all(ctx, slices.Collect(maps.Values(nodes))) {
		used[name] = two.pods()
	}
	all := []v1beta1.PodMetrics{}
	for _, p := range pods {
		if containers := used[p.Spec.NodeName][podName{p.Namespace, p.Name}]; len(containers) > 0 && p.Status.Phase == corev1.PodRunning {
			all = append(all, podMetrics(p, containers))
		}
	}
	slices.SortFunc(all, func(a, b v1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// podMetrics tells of a pod. Its time is that of the container that was measured first.
func podMetrics(p *corev1.Pod, containers map[string]usage) v1beta1.PodMetrics {
	m := v1beta1.PodMetrics{ObjectMeta: metaOf(p), Containers: []v1beta1.ContainerMetrics{}}
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		u := containers[name]
		if m.Timestamp.IsZero() || u.at.Before(m.Timestamp.Time) {
			m.Timestamp, m.Window = metav1.NewTime(u.at), metav1.Duration{Duration: u.window}
		}
		m.Containers = append(m.Containers, v1beta1.ContainerMetrics{Name: name, Usage: u.used})
	}
	return m
}

// ConvertToTable implements [rest.TableConvertor].
func (*podsREST) ConvertToTable(_ context.Context, o, _ runtime.Object) (*metav1.Table, error) {
	return table(o)
}

func metaOf(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), Labels: o.GetLabels(), CreationTimestamp: metav1.NewTime(time.Now())}
}

func selectors(o *internalversion.ListOptions) (labels.Selector, fields.Selector) {
	byLabel, byField := labels.Everything(), fields.Everything()
	if o != nil && o.LabelSelector != nil {
		byLabel = o.LabelSelector
	}
	if o != nil && o.FieldSelector != nil {
		byField = o.FieldSelector
	}
	return byLabel, byField
}
