package scheduler

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cycle"
)

// Explanation is why a pod could be on each node, or not.
type Explanation struct {
	// Whole is what is against the pod whatever the node.
	Whole []Reason
	Nodes []NodeReasons
}

// NodeReasons are what is against one node; none: the pod may be there.
type NodeReasons struct {
	Node    string
	Reasons []Reason
}

// Reason is what a plugin says.
type Reason struct{ Plugin, Message string }

// Explain has the plugins look at all nodes as they are now, and nothing be changed. It is for a scheduler that does
// not run, whose informers do.
func (s *Scheduler) Explain(ctx context.Context, pod *corev1.Pod) (*Explanation, error) {
	p := s.profiles[pod.Spec.SchedulerName]
	if p == nil {
		return nil, fmt.Errorf("explain pod: its scheduler is %q, which is not this one", pod.Spec.SchedulerName)
	}
	if err := s.fill(); err != nil {
		return nil, err
	}
	e := &Explanation{}
	for _, plugin := range p.PreEnqueue() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			e.Whole = append(e.Whole, Reason{plugin.Name(), status.Message()})
		}
	}
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	state := cycle.NewState()
	only, narrowing, status := p.RunPreFilter(ctx, state, pod, nodes)
	if status.IsError() {
		return nil, status.AsError()
	}
	if !status.IsSuccess() {
		e.Whole = append(e.Whole, Reason{status.Plugin(), status.Message()})
		return e, nil
	}
	for _, n := range nodes {
		r := NodeReasons{Node: n.Node().Name}
		if !only.AllNodes() && !only.NodeNames.Has(r.Node) {
			r.Reasons = append(r.Reasons, Reason{Message: fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", narrowing)})
		} else {
			r.Reasons = reasons(p.FilterAll(ctx, state, pod, n))
		}
		e.Nodes = append(e.Nodes, r)
	}
	slices.SortFunc(e.Nodes, func(a, b NodeReasons) int { return len(a.Reasons) - len(b.Reasons) })
	return e, nil
}

func reasons(all []*fwk.Status) []Reason {
	var list []Reason
	for _, status := range all {
		for _, message := range status.Reasons() {
			list = append(list, Reason{status.Plugin(), message})
		}
	}
	return list
}

// fill has the cache know what informers do.
func (s *Scheduler) fill() error {
	nodes, err := s.shared.Informers.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range nodes {
		s.cache.SetNode(n)
	}
	pods, err := s.pods.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for _, pod := range pods {
		s.groups.Set(pod)
		if placed(pod) {
			s.cache.SetPod(pod)
		}
	}
	s.cache.Update(s.snapshot)
	return nil
}
