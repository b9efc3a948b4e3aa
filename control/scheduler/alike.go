package scheduler

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/profile"
)

const (
	// kindsOfPods is of how many kinds of pods the nodes are kept that were found for the last of each.
	kindsOfPods = 8
	// longestAlike is how long these are good for at most: plugins may look at what nobody here hears of.
	longestAlike = 500 * time.Millisecond
	// partOfSample is which part of the nodes may be given pods before others are looked for, where there are more
	// nodes than are looked at: else pods that are alike would crowd on a few nodes of many.
	partOfSample = 4
	// fewNodes are looked at sooner than a pod is signed.
	fewNodes = 10
)

// alike has the nodes that were found for pods of several kinds, the last kind first.
type alike struct{ last []*batch }

// batch is the nodes that suit the pods of one kind.
type batch struct {
	profile   *profile.Profile
	signature string
	ranking   *profile.Ranking
	extent    extent
	// opinions says that pods which are for or against others have come or gone since.
	opinions bool
	// left is how many pods may still have a node of these, and fewest how many nodes have to be left, of a part.
	left, fewest int
	mark         cluster.Mark
	made         time.Time
}

// sign is what a pod has in common with those that are like it; empty: it is placed by itself. Extenders do not tell
// what they look at, and for a node that is kept for a pod all depends on the pod's priority.
func sign(ctx context.Context, s *Scheduler, p *profile.Profile, pod *corev1.Pod) string {
	if s.snapshot.Len() < fewNodes || len(s.shared.Extenders) > 0 || pod.Status.NominatedNodeName != "" || !s.shared.Nominator.Empty() {
		return ""
	}
	return profile.SignFar(ctx, p, pod)
}

// keep has the nodes that were found for a pod be there for those that are like it.
func (a *alike) keep(b *batch) {
	a.last = slices.Insert(a.last, 0, b)
	a.last = slices.Delete(a.last, min(len(a.last), kindsOfPods), len(a.last))
}

// take is the batch of a kind, which is not kept any more: whoever brings it up to date keeps it again. Those that are
// too old go.
func (a *alike) take(p *profile.Profile, signature string) *batch {
	a.last = slices.DeleteFunc(a.last, func(b *batch) bool { return time.Since(b.made) > longestAlike })
	for i, b := range a.last {
		if b.profile == p && b.signature == signature {
			a.last = slices.Delete(a.last, i, i+1)
			return b
		}
	}
	return nil
}

// newBatch is of the nodes that were found for a pod; nil: no node is to be chosen of them again.
func newBatch(p *profile.Profile, signature string, found *found, mark cluster.Mark) *batch {
	if signature == "" || found.ranking == nil {
		return nil
	}
	nodes := len(found.ranking.Nodes())
	b := &batch{profile: p, signature: signature, ranking: found.ranking, extent: found.extent, mark: mark, made: time.Now()}
	if !b.extent.whole {
		b.left, b.fewest = nodes/partOfSample, nodes/2
		if b.left == 0 {
			return nil
		}
	}
	return b
}

// again chooses a node of those that were found for a pod that this one is like. Empty: that cannot be done, and all is
// to be looked at, which finds what is wrong, too.
func again(ctx context.Context, s *Scheduler, p *profile.Profile, state fwk.CycleState, pod *corev1.Pod, signature string) string {
	node := among(ctx, s, s.alike.take(p, signature), state, pod)
	s.metrics.Batch(p.Name(), node != "")
	return node
}

func among(ctx context.Context, s *Scheduler, b *batch, state fwk.CycleState, pod *corev1.Pod) string {
	if b == nil {
		return ""
	}
	changes, known := s.snapshot.Since(b.mark)
	if !known || len(changes.Nodes) > len(b.ranking.Nodes()) {
		return ""
	}
	b.opinions = b.opinions || changes.Opinions
	far := profile.FarsightFor(b.profile, pod, b.opinions)
	// What plugins that look far have rejected may suit now.
	if far != nil && b.extent.far || !b.refresh(ctx, s, far, state, pod, changes.Nodes) {
		return ""
	}
	b.mark = s.snapshot.Mark()
	node := b.ranking.Nodes()[best(b.ranking.Totals())].Node().Name
	if b.left--; b.extent.whole || b.left > 0 {
		s.alike.keep(b)
	}
	return node
}

// refresh has the plugins look at the nodes that have changed since, and says whether it is as if they had looked at
// all of them for the pod. What is before any node is done for each pod: later phases may need it.
func (b *batch) refresh(
	ctx context.Context, s *Scheduler, far *profile.Farsight, state fwk.CycleState, pod *corev1.Pod, changed []string,
) (good bool) {
	nodes, err := s.snapshot.NodeInfos().List()
	if err != nil {
		return false
	}
	only, _, status := b.profile.RunPreFilter(ctx, state, pod, nodes)
	if !status.IsSuccess() {
		return false
	}
	defer s.looked(b.profile, time.Now(), &err)
	seen := sets.New[string]()
	var again []fwk.NodeInfo
	var unsuitable []string
	for _, name := range changed {
		if seen.Has(name) || !b.extent.whole && !b.ranking.Has(name) {
			continue
		}
		seen.Insert(name)
		info, err := s.snapshot.NodeInfos().Get(name)
		if err != nil {
			return false
		}
		suits := only.AllNodes() || only.NodeNames.Has(name)
		if suits {
			status := profile.FilterNear(ctx, b.profile, far, state, pod, info)
			if status.IsError() {
				return false
			}
			suits = status.IsSuccess()
		}
		switch {
		case !b.ranking.Has(name):
			if suits {
				return false // the others were compared without it
			}
		case suits:
			again = append(again, info)
		default:
			unsuitable = append(unsuitable, name)
		}
	}
	if far != nil {
		left, status := b.ranking.RefreshFar(ctx, far, state, pod, again, unsuitable)
		return status.IsSuccess() && ctx.Err() == nil && left > 0 && left >= min(b.fewest, enoughNodes) && len(b.ranking.Nodes()) >= b.fewest
	}
	if status := b.ranking.Refresh(ctx, again, unsuitable); !status.IsSuccess() || ctx.Err() != nil {
		return false
	}
	left := len(b.ranking.Nodes())
	return left > 0 && left >= b.fewest
}
