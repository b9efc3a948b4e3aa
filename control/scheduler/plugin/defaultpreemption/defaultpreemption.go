// Package defaultpreemption is the plugin DefaultPreemption: room made for a pod by ending others of less priority, as
// few and as unimportant ones as will do, and on the node where that costs least.
package defaultpreemption

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	policylisters "k8s.io/client-go/listers/policy/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/scheduler/profile"
)

// Name is the plugin's.
const Name = "DefaultPreemption"

const (
	defaultPercentage = 10
	defaultAbsolute   = 100
)

// Plugin makes room.
type Plugin struct {
	handle  fwk.Handle
	budgets policylisters.PodDisruptionBudgetLister
	// percentage and absolute say how many nodes are tried before one is chosen.
	percentage, absolute int
	ending               ending
	groups               groups
}

var (
	_ fwk.PreEnqueuePlugin  = (*Plugin)(nil)
	_ fwk.PostFilterPlugin  = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
)

// New makes the plugin.
func New(_ context.Context, o runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	args, err := plugin.Args[configv1.DefaultPreemptionArgs](o)
	if err != nil {
		return nil, err
	}
	p := &Plugin{handle: h, percentage: defaultPercentage, absolute: defaultAbsolute, groups: groups{h.PodGroupManager()}}
	p.ending.pods, p.ending.last = map[types.UID]bool{}, map[types.UID]sacrifice{}
	if n := args.MinCandidateNodesPercentage; n != nil {
		p.percentage = int(*n)
	}
	if n := args.MinCandidateNodesAbsolute; n != nil {
		p.absolute = int(*n)
	}
	switch {
	case p.percentage < 0 || p.percentage > 100:
		return nil, fmt.Errorf("minCandidateNodesPercentage: %d is not within 0 and 100", p.percentage)
	case p.absolute < 0:
		return nil, fmt.Errorf("minCandidateNodesAbsolute: %d is negative", p.absolute)
	case p.percentage == 0 && p.absolute == 0:
		return nil, errors.New("minCandidateNodesPercentage, minCandidateNodesAbsolute: one has to be more than 0")
	}
	p.budgets = h.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister()
	return p, nil
}

// Name implements [fwk.Plugin].
func (*Plugin) Name() string { return Name }

// PreEnqueue implements [fwk.PreEnqueuePlugin]: a pod is not attempted while room is being made for it.
func (p *Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if p.ending.has(pod.UID) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for the preemption for this pod to be finished")
	}
	return nil
}

// EventsToRegister implements [fwk.EnqueueExtensions]. The end of the last victim comes after the room is made.
func (*Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{plugin.OnAssigned(fwk.Delete, nil)}, nil
}

// PostFilter implements [fwk.PostFilterPlugin].
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	result, status := p.preempt(ctx, state, pod, statuses)
	if message := status.Message(); message != "" && status.IsRejected() {
		return result, fwk.NewStatus(status.Code(), "preemption: "+message)
	}
	return result, status
}

func (p *Plugin) preempt(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if policy := pod.Spec.PreemptionPolicy; policy != nil && *policy == corev1.PreemptNever {
		return nil, fwk.NewStatus(fwk.Unschedulable, "not eligible due to preemptionPolicy=Never.")
	}
	if node := p.waits(pod, statuses); node != "" {
		return nominate(node), fwk.NewStatus(fwk.Unschedulable, "not eligible due to a terminating pod on the nominated node.")
	}
	lister := p.handle.SnapshotSharedLister().NodeInfos()
	all, err := lister.List()
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("list nodes: %w", err))
	}
	nodes, err := statuses.NodesForStatusCode(lister, fwk.Unschedulable)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	list, err := p.budgets.List(labels.Everything())
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("list disruption budgets: %w", err))
	}
	found, why, err := p.candidates(ctx, state, pod, nodes, newBudgets(list))
	if err != nil && len(found) == 0 {
		return nil, fwk.AsStatus(err)
	}
	if len(found) == 0 {
		return nominate(""), fwk.NewStatus(fwk.Unschedulable, nobodyHelps(len(all), why))
	}
	if found, err = p.askExtenders(pod, found, lister); err != nil {
		return nil, fwk.AsStatus(err)
	}
	best := cheapest(found)
	if best == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, "no candidate node for preemption")
	}
	p.end(ctx, []*corev1.Pod{pod}, best.victims, []string{best.node})
	return nominate(best.node), nil
}

func nominate(node string) *fwk.PostFilterResult {
	return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatedNodeName: node, NominatingMode: fwk.ModeOverride}}
}

// nobodyHelps says for how many nodes ending pods is of no use, and why.
func nobodyHelps(nodes int, why map[string]*fwk.Status) string {
	r := profile.NewRejection(nodes)
	r.Statuses.SetAbsent(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling"))
	for node, status := range why {
		r.Statuses.Set(node, status)
	}
	return r.Message()
}

// waits is the node where what was ended for a pod already is still ending; empty: nothing is, or the node is of no use
// to the pod any more.
func (p *Plugin) waits(pod *corev1.Pod, statuses fwk.NodeToStatusReader) string {
	nodes := p.handle.SnapshotSharedLister().NodeInfos()
	node := pod.Status.NominatedNodeName
	if p.endingOn(pod) && statuses.Get(node).Code() != fwk.UnschedulableAndUnresolvable {
		return node
	}
	for _, node := range p.ending.left(pod.UID, nodes) {
		if statuses.Get(node).Code() != fwk.UnschedulableAndUnresolvable {
			return node
		}
	}
	return ""
}

// endingOn says whether what was ended for a pod already is still ending, as the API has it.
func (p *Plugin) endingOn(pod *corev1.Pod) bool {
	if pod.Status.NominatedNodeName == "" {
		return false
	}
	node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(pod.Status.NominatedNodeName)
	return err == nil && slices.ContainsFunc(node.GetPods(), func(other fwk.PodInfo) bool {
		victim := other.GetPod()
		return p.groups.priority(victim) < p.groups.priority(pod) && endedByScheduler(victim)
	})
}

func endedByScheduler(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority
	}
	return 0
}

// candidates tries nodes, from any one on, until enough are found. It also says why others are none.
func (p *Plugin) candidates(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo, all budgets) ([]*candidate, map[string]*fwk.Status, error) {
	if len(nodes) == 0 {
		return nil, nil, nil
	}
	enough := min(len(nodes), max(len(nodes)*p.percentage/100, p.absolute))
	from := rand.IntN(len(nodes)) // it is to be even, not secret
	var mu sync.Mutex
	var found []*candidate
	var errs []error
	kept := 0 // that break no budget
	why := map[string]*fwk.Status{}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	p.handle.Parallelizer().Until(within, len(nodes), func(i int) {
		node := nodes[(from+i)%len(nodes)]
		c, status := p.victims(within, state.Clone(), pod, node.Snapshot(), all)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case within.Err() != nil:
		case status.IsError():
			errs = append(errs, status.AsError())
		case !status.IsSuccess():
			why[node.Node().Name] = status
		default:
			found = append(found, c)
			if c.violations == 0 {
				kept++
			}
			if len(found) >= enough && kept > 0 {
				cancel()
			}
		}
	}, Name)
	if err := ctx.Err(); err != nil {
		errs = append(errs, err)
	}
	return found, why, errors.Join(errs...)
}
