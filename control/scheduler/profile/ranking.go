package profile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Ranking is nodes that suit a pod, and what the plugins say of each of them. For pods that are alike it can be brought
// up to date: of nodes that have changed the plugins are asked again, and the others are what they were.
type Ranking struct {
	profile *Profile
	state   fwk.CycleState
	pod     *corev1.Pod
	nodes   []fwk.NodeInfo
	scores  []scoring
	totals  []int64
	at      map[string]int // of nodes by name; nil: nobody has asked yet
	// barred says of which nodes plugins that look far reject them; empty: nobody has asked them again yet.
	barred []bool
	room   fwk.NodeScoreList // for those that are not
}

// Rank compares nodes for a pod, after PreScore.
func Rank(ctx context.Context, p *Profile, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*Ranking, *fwk.Status) {
	scores, status := scoreAll(p, ctx, state, pod, nodes, func(all []scoring) {
		for i := range all {
			all[i].keep()
		}
	})
	if !status.IsSuccess() {
		return nil, status
	}
	r := &Ranking{profile: p, state: state, pod: pod, nodes: nodes, scores: scores, totals: make([]int64, len(nodes))}
	r.sum()
	return r, nil
}

// keep notes what a plugin has said of each node before it compares them with each other.
func (s *scoring) keep() {
	if s.plugin.ScoreExtensions() == nil {
		return
	}
	s.raw = make([]int64, len(s.scores))
	for i := range s.scores {
		s.raw[i] = s.scores[i].Score
	}
}

// Nodes are those that are ranked.
func (r *Ranking) Nodes() []fwk.NodeInfo { return r.nodes }

// Totals are what the plugins' scores come to, node by node.
func (r *Ranking) Totals() []int64 { return r.totals }

// Has says whether a node is ranked.
func (r *Ranking) Has(node string) bool {
	_, there := r.index()[node]
	return there
}

func (r *Ranking) index() map[string]int {
	if r.at == nil {
		r.at = make(map[string]int, len(r.nodes))
		for i, n := range r.nodes {
			r.at[n.Node().Name] = i
		}
	}
	return r.at
}

// Refresh has the plugins look again at ranked nodes that have changed and still suit, and takes away those that do not
// suit any more. After an error the ranking is good for nothing.
func (r *Ranking) Refresh(ctx context.Context, again []fwk.NodeInfo, unsuitable []string) (ended *fwk.Status) {
	defer took(r.profile, "Score", time.Now(), &ended)
	r.removeAll(unsuitable)
	differs, status := r.rescoreAll(ctx, nil, again)
	if !status.IsSuccess() || !differs && len(unsuitable) == 0 {
		return status
	}
	for i := range r.scores {
		if status := r.compare(ctx, &r.scores[i], r.state, r.pod); !status.IsSuccess() {
			return status
		}
	}
	r.sum()
	return nil
}

// rescoreAll asks those that do not look far about nodes that have changed, and says whether one has changed its mind
// that compares nodes with each other.
func (r *Ranking) rescoreAll(ctx context.Context, far *Farsight, nodes []fwk.NodeInfo) (differs bool, ended *fwk.Status) {
	for _, info := range nodes {
		at, there := r.index()[info.Node().Name]
		if !there {
			continue
		}
		r.nodes[at] = info
		one, status := r.rescore(ctx, far, at)
		if !status.IsSuccess() {
			return false, status
		}
		differs = differs || one
	}
	return differs, nil
}

func (r *Ranking) rescore(ctx context.Context, far *Farsight, at int) (differs bool, ended *fwk.Status) {
	total := int64(0)
	for i := range r.scores {
		s := &r.scores[i]
		if far.has(s.plugin) {
			continue // it looks at all of them anyway
		}
		value, status := s.plugin.Score(ctx, r.state, r.pod, r.nodes[at])
		if !status.IsSuccess() {
			return false, failed("Score", s.plugin, status)
		}
		if s.raw != nil {
			differs = differs || s.raw[at] != value
			s.raw[at] = value
		} else if s.scores[at].Score, status = s.weighed(s.scores[at].Name, value); !status.IsSuccess() {
			return false, status
		}
		total += s.scores[at].Score
	}
	r.totals[at] = total
	return differs, nil
}

func (r *Ranking) removeAll(names []string) {
	for _, name := range names {
		if at, there := r.index()[name]; there {
			r.remove(at, name)
		}
	}
}

// remove has the last node come to the place of one that goes.
func (r *Ranking) remove(at int, name string) {
	last := len(r.nodes) - 1
	delete(r.at, name)
	if at != last {
		r.at[r.nodes[last].Node().Name] = at
	}
	r.nodes[at], r.totals[at] = r.nodes[last], r.totals[last]
	r.nodes, r.totals = r.nodes[:last], r.totals[:last]
	for i := range r.scores {
		s := &r.scores[i]
		s.scores[at] = s.scores[last]
		s.scores = s.scores[:last]
		if s.raw != nil {
			s.raw[at] = s.raw[last]
			s.raw = s.raw[:last]
		}
	}
}

func (r *Ranking) sum() {
	clear(r.totals)
	for i := range r.scores {
		for n := range r.totals {
			r.totals[n] += r.scores[i].scores[n].Score
		}
	}
	for n, barred := range r.barred {
		if barred {
			r.totals[n] = barredTotal
		}
	}
}

// weighed is a score with the plugin's weight.
func (s *scoring) weighed(node string, score int64) (int64, *fwk.Status) {
	if score < fwk.MinScore || score > fwk.MaxScore {
		return 0, fwk.AsStatus(fmt.Errorf("run Score of plugin %q: the score of node %q is %d, and is to be within %d and %d",
			s.plugin.Name(), node, score, fwk.MinScore, fwk.MaxScore))
	}
	return score * s.weight, nil
}
