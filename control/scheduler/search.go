package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/profile"
)

const (
	// enoughNodes are looked for in any case, and below it all are looked at.
	enoughNodes = 100
	// Of large clusters a part of the nodes is enough: the larger, the smaller, between these percentages.
	mostPercent, leastPercent = 50, 5
	perPercent                = 125 // so many nodes more make it one percent less
)

// search is where the look at nodes goes on: each pod begins where the one before has stopped, so that all nodes have
// their turn.
type search struct {
	next    int
	results []*fwk.Status // room for what each node was rejected for
	limit   time.Duration // of one attempt; 0: longest
}

// found is the node that was chosen, and of which.
type found struct {
	node string
	// ranking is of those that suit; nil: they were not compared by plugins alone.
	ranking *profile.Ranking
	extent  extent
}

// extent is which nodes were looked at, for those that suit.
type extent struct {
	// whole says that there are no others that suit, and far that of all others some were rejected by plugins that look
	// far.
	whole, far bool
}

// noNodes is said while there is no node at all, and nodesPlugin stands for that among the plugins that have rejected a
// pod: nothing but a node changes it.
const (
	noNodes     = "no nodes available to schedule pods"
	nodesPlugin = "Nodes"
)

// nobody has a pod wait for the first node.
func (s *Scheduler) nobody(ctx context.Context, t *try) {
	s.giveBack(ctx, t, sets.New(nodesPlugin), nil, nil, corev1.PodReasonUnschedulable, noNodes)
}

// enough is of how many nodes that suit one is chosen.
func enough(nodes, percentage int) int {
	if nodes < enoughNodes {
		return nodes
	}
	if percentage == 0 {
		percentage = max(leastPercent, mostPercent-nodes/perPercent)
	}
	return max(enoughNodes, nodes*percentage/100)
}

// choose finds the best node for a pod. Without one there is a rejection, or an error.
func (s *Scheduler) choose(ctx context.Context, p *profile.Profile, state fwk.CycleState, pod *corev1.Pod) (string, *profile.Rejection, error) {
	s.cache.Update(s.snapshot)
	signature := sign(ctx, s, p, pod)
	if node := again(ctx, s, p, state, pod, signature); node != "" {
		return node, nil, nil
	}
	found, rejection, err := s.pick(ctx, p, state, pod)
	if found == nil {
		return "", rejection, err
	}
	if b := newBatch(p, signature, found, s.snapshot.Mark()); b != nil {
		s.alike.keep(b)
	}
	return found.node, nil, nil
}

// pick looks at the nodes for a pod by the snapshot as it is, which may be of what would be.
func (s *Scheduler) pick(ctx context.Context, p *profile.Profile, state fwk.CycleState, pod *corev1.Pod) (*found, *profile.Rejection, error) {
	rejection := profile.NewRejection(s.snapshot.Len())
	if s.snapshot.Len() == 0 {
		return nil, rejection, nil
	}
	within, cancel := half(ctx)
	defer cancel()
	suitable, extent, err := s.suitable(within, p, state, pod, rejection)
	if late(within) && len(suitable) == 0 {
		return nil, nil, errTooLong // whatever plugins have made of it
	}
	if err != nil {
		return nil, nil, err
	}
	switch len(suitable) {
	case 0:
		return nil, rejection, nil
	case 1:
		return &found{node: suitable[0].Node().Name}, nil, nil
	}
	var ranking *profile.Ranking
	status := p.RunPreScorePlugins(ctx, state, pod, suitable)
	if status.IsSuccess() {
		ranking, status = profile.Rank(ctx, p, state, pod, suitable)
	}
	switch {
	case late(ctx): // any of them will do
		return &found{node: suitable[rand.IntN(len(suitable))].Node().Name}, nil, nil
	case !status.IsSuccess():
		return nil, nil, status.AsError()
	}
	totals := ranking.Totals()
	s.askPrioritizers(pod, suitable, totals)
	return &found{suitable[best(totals)].Node().Name, ranking, extent}, nil, nil
}

// best is one of the nodes with the highest total, any of them.
func best(totals []int64) int {
	top, same := slices.Max(totals), 0
	for _, total := range totals {
		if total == top {
			same++
		}
	}
	nth := rand.IntN(same) // it is to be even, not secret
	for i, total := range totals {
		if total != top {
			continue
		}
		if nth--; nth < 0 {
			return i
		}
	}
	return 0 // there is one
}

// suitable are nodes that no plugin rejects, as many as are enough.
func (s *Scheduler) suitable(
	ctx context.Context, p *profile.Profile, state fwk.CycleState, pod *corev1.Pod, rejection *profile.Rejection,
) (suit []fwk.NodeInfo, within extent, err error) {
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return nil, within, fmt.Errorf("list nodes: %w", err)
	}
	only, narrowing, status := p.RunPreFilter(ctx, state, pod, nodes)
	if status.IsError() {
		return nil, within, status.AsError()
	}
	if !status.IsSuccess() {
		rejection.Statuses.SetAbsent(status)
		rejection.Before = status.Message()
		rejection.Blame(status)
		return nil, within, nil
	}
	if suit := nominated(ctx, s, p, state, pod); len(suit) > 0 {
		return suit, within, nil
	}
	wanted := enough(len(nodes), s.percentages[p.Name()])
	if !p.Scores() && len(s.shared.Extenders) == 0 {
		wanted = 1
	}
	if !only.AllNodes() {
		nodes = s.only(only.NodeNames)
		rejection.Unschedulable.Insert(narrowing...)
		rejection.Statuses.SetAbsent(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", narrowing)))
	}
	suit, looked, err := s.filter(ctx, p, state, pod, nodes, wanted, rejection)
	if err != nil {
		return nil, within, err
	}
	within.whole = looked == len(nodes)
	within.far = within.whole && slices.ContainsFunc(s.search.results[:len(nodes)], func(status *fwk.Status) bool { return profile.Farther(p, status) })
	suit, err = s.askFilters(pod, suit, rejection)
	return suit, within, err
}

// nominated is the node that others were ended for so that a pod has it, which is taken without a look at the rest.
func nominated(ctx context.Context, s *Scheduler, p *profile.Profile, state fwk.CycleState, pod *corev1.Pod) []fwk.NodeInfo {
	if pod.Status.NominatedNodeName == "" {
		return nil
	}
	info, err := s.snapshot.NodeInfos().Get(pod.Status.NominatedNodeName)
	if err != nil {
		return nil
	}
	suit, _, err := s.filter(ctx, p, state, pod, []fwk.NodeInfo{info}, 1, nil)
	if err != nil || len(suit) == 0 {
		return nil
	}
	if suit, err = s.askFilters(pod, suit, profile.NewRejection(1)); err != nil {
		return nil
	}
	return suit
}

func (s *Scheduler) only(names sets.Set[string]) []fwk.NodeInfo {
	nodes := make([]fwk.NodeInfo, 0, names.Len())
	for name := range names {
		if info, err := s.snapshot.NodeInfos().Get(name); err == nil {
			nodes = append(nodes, info)
		}
	}
	return nodes
}

// filter looks at nodes until as many as wanted suit, and says how many it has looked at.
func (s *Scheduler) filter(
	ctx context.Context, p *profile.Profile, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo, wanted int, rejection *profile.Rejection,
) (suit []fwk.NodeInfo, seen int, err error) {
	defer s.looked(p, time.Now(), &err)
	if len(s.search.results) < len(nodes) {
		s.search.results = make([]*fwk.Status, len(nodes))
	}
	results := s.search.results[:len(nodes)]
	clear(results)
	found := make([]fwk.NodeInfo, min(wanted, len(nodes)))
	from := s.search.next % max(1, len(nodes))
	var count, looked atomic.Int64
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	p.Handle().Parallelizer().Until(within, len(nodes), func(i int) {
		at := from + i
		if at >= len(nodes) {
			at -= len(nodes)
		}
		looked.Add(1)
		status := p.FilterNominated(within, state, pod, nodes[at])
		if !status.IsSuccess() {
			results[at] = status
			if status.IsError() {
				cancel()
			}
			return
		}
		switch n := int(count.Add(1)); {
		case n <= len(found):
			found[n-1] = nodes[at]
			if n == len(found) {
				cancel()
			}
		default:
			looked.Add(-1) // it suits, and is the next one's
			cancel()
		}
	}, "Filter")
	found, seen = found[:min(int(count.Load()), len(found))], int(looked.Load())
	if rejection == nil {
		return found, seen, nil
	}
	// Who has had no time for all nodes goes on with the others.
	s.search.next = (from + seen) % max(1, len(nodes))
	if late(ctx) && len(found) > 0 {
		return found, seen, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, seen, fmt.Errorf("look at nodes: %w", err)
	}
	// Who has found nodes asks nobody why others do not suit.
	return found, seen, reject(rejection, nodes, results, len(found) == 0 || len(s.shared.Extenders) > 0)
}

// reject has a rejection say what nodes were rejected for, if that is wanted. An error of any is that of all.
func reject(rejection *profile.Rejection, nodes []fwk.NodeInfo, results []*fwk.Status, wanted bool) error {
	for at, status := range results {
		if status.IsError() {
			return status.AsError()
		}
		if status != nil && wanted {
			rejection.Statuses.Set(nodes[at].Node().Name, status)
			rejection.Blame(status)
		}
	}
	return nil
}

// looked tells how long the look at nodes has taken that began at some time.
func (s *Scheduler) looked(p *profile.Profile, began time.Time, err *error) {
	code := fwk.Success
	if *err != nil {
		code = fwk.Error
	}
	s.metrics.Point("Filter", code.String(), p.Name(), time.Since(began))
}

// askFilters has extenders take nodes away.
func (s *Scheduler) askFilters(pod *corev1.Pod, nodes []fwk.NodeInfo, rejection *profile.Rejection) ([]fwk.NodeInfo, error) {
	for _, e := range s.shared.Extenders {
		if len(nodes) == 0 {
			break
		}
		if !e.IsFilter() || !e.IsInterested(pod) {
			continue
		}
		left, failed, unresolvable, err := e.Filter(pod, nodes)
		if err != nil {
			if e.IsIgnorable() {
				s.log.Warn("extender is passed over", "extender", e.Name(), "error", err)
				continue
			}
			return nil, err
		}
		note := func(all extenderv1.FailedNodesMap, code fwk.Code) {
			for node, why := range all {
				rejection.Statuses.Set(node, fwk.NewStatus(code, why))
			}
		}
		note(failed, fwk.Unschedulable)
		note(unresolvable, fwk.UnschedulableAndUnresolvable)
		if len(left) < len(nodes) {
			// No event is known that would change an extender's mind.
			rejection.Unschedulable.Insert(extenderPlugin)
		}
		nodes = left
	}
	return nodes, nil
}

// extenderPlugin stands for extenders among the plugins that have rejected a pod.
const extenderPlugin = "Extender"

// askPrioritizers has extenders add to totals. One that does not answer has no say.
func (s *Scheduler) askPrioritizers(pod *corev1.Pod, nodes []fwk.NodeInfo, totals []int64) {
	for _, e := range s.shared.Extenders {
		if !e.IsPrioritizer() || !e.IsInterested(pod) {
			continue
		}
		scores, weight, err := e.Prioritize(pod, nodes)
		if err != nil {
			s.log.Warn("extender does not compare nodes", "extender", e.Name(), "error", err)
			continue
		}
		said := make(map[string]int64, len(*scores))
		for _, score := range *scores {
			said[score.Host] = score.Score
		}
		for i, n := range nodes {
			totals[i] += said[n.Node().Name] * weight * (fwk.MaxScore / extenderv1.MaxExtenderPriority)
		}
	}
}
