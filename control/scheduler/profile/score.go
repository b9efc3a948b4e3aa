package profile

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// RunPreScorePlugins implements [fwk.PluginsRunner].
func (p *Profile) RunPreScorePlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (ended *fwk.Status) {
	defer took(p, "PreScore", time.Now(), &ended)
	skip := sets.New[string]()
	state.SetSkipScorePlugins(skip)
	for _, plugin := range p.points.preScore {
		status := plugin.PreScore(ctx, state, pod, nodes)
		if status.IsSkip() {
			skip.Insert(plugin.Name())
			continue
		}
		if !status.IsSuccess() {
			return failed("PreScore", plugin, status)
		}
	}
	return nil
}

// scoring is one plugin that scores, and what it says of each node.
type scoring struct {
	plugin fwk.ScorePlugin
	weight int64
	scores fwk.NodeScoreList
	raw    []int64 // before nodes were compared; nil: they are not, or nobody wants to know
}

// scoreAll asks all plugins about all nodes, and has each weigh what it says, when raw has seen it.
func scoreAll(
	p *Profile, ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo, raw func([]scoring),
) (all []scoring, ended *fwk.Status) {
	defer took(p, "Score", time.Now(), &ended)
	skip := state.GetSkipScorePlugins()
	active := make([]scoring, 0, len(p.points.score))
	for i, plugin := range p.points.score {
		if !skip.Has(plugin.Name()) {
			active = append(active, scoring{plugin: plugin, weight: p.weights[i]})
		}
	}
	room := make(fwk.NodeScoreList, len(active)*len(nodes))
	for i := range active {
		active[i].scores = room[i*len(nodes) : (i+1)*len(nodes)]
	}
	var first firstFailure
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	p.handle.Parallelizer().Until(within, len(nodes), func(n int) {
		for i := range active {
			value, status := active[i].plugin.Score(within, state, pod, nodes[n])
			if !status.IsSuccess() {
				first.set(failed("Score", active[i].plugin, status))
				cancel()
				return
			}
			active[i].scores[n] = fwk.NodeScore{Name: nodes[n].Node().Name, Score: value}
		}
	}, "Score")
	if first.status != nil {
		return nil, first.status
	}
	if err := ctx.Err(); err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("score nodes: %w", err))
	}
	raw(active)
	for i := range active {
		if status := active[i].normalize(ctx, state, pod); !status.IsSuccess() {
			return nil, status
		}
	}
	return active, nil
}

func (s *scoring) normalize(ctx context.Context, state fwk.CycleState, pod *corev1.Pod) *fwk.Status {
	if e := s.plugin.ScoreExtensions(); e != nil {
		if status := e.NormalizeScore(ctx, state, pod, s.scores); !status.IsSuccess() {
			return failed("NormalizeScore", s.plugin, status)
		}
	}
	for i := range s.scores {
		var status *fwk.Status
		if s.scores[i].Score, status = s.weighed(s.scores[i].Name, s.scores[i].Score); !status.IsSuccess() {
			return status
		}
	}
	return nil
}

// firstFailure is that of several goroutines.
type firstFailure struct {
	mu     sync.Mutex
	status *fwk.Status
}

func (f *firstFailure) set(status *fwk.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.status == nil {
		f.status = status
	}
}

// RunScorePlugins implements [fwk.PluginsRunner].
func (p *Profile) RunScorePlugins(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodePluginScores, *fwk.Status) {
	all := make([]fwk.NodePluginScores, len(nodes))
	scores, status := scoreAll(p, ctx, state, pod, nodes, func(raw []scoring) {
		for n := range nodes {
			all[n].Name = nodes[n].Node().Name
			for i := range raw {
				all[n].RawScores = append(all[n].RawScores, fwk.PluginScore{Name: raw[i].plugin.Name(), Score: raw[i].scores[n].Score})
			}
		}
	})
	if !status.IsSuccess() {
		return nil, status
	}
	for n := range nodes {
		for i := range scores {
			value := scores[i].scores[n].Score
			all[n].Scores = append(all[n].Scores, fwk.PluginScore{Name: scores[i].plugin.Name(), Score: value})
			all[n].TotalScore += value
		}
	}
	return all, nil
}
