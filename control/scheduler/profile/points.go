package profile

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// points are the plugins of each phase, in order.
type points struct {
	preEnqueue      []fwk.PreEnqueuePlugin
	queueSort       []fwk.QueueSortPlugin
	preFilter       []fwk.PreFilterPlugin
	filter          []fwk.FilterPlugin
	postFilter      []fwk.PostFilterPlugin
	groupPostFilter []fwk.PodGroupPostFilterPlugin
	preScore        []fwk.PreScorePlugin
	score           []fwk.ScorePlugin
	reserve         []fwk.ReservePlugin
	permit          []fwk.PermitPlugin
	preBind         []fwk.PreBindPlugin
	bind            []fwk.BindPlugin
	postBind        []fwk.PostBindPlugin
}

// phase is one row of the table of phases: what a configuration says of it, and how a plugin joins it.
type phase struct {
	name string
	set  func(*configv1.Plugins) *configv1.PluginSet
	join func(*points, fwk.Plugin) bool // false: the plugin has nothing for the phase
}

func join[T any](list func(*points) *[]T) func(*points, fwk.Plugin) bool {
	return func(p *points, plugin fwk.Plugin) bool {
		t, ok := plugin.(T)
		if ok && p != nil {
			l := list(p)
			*l = append(*l, t)
		}
		return ok
	}
}

// phases are all there are, but those that choose among placements of groups of pods.
func phases() []phase {
	return []phase{
		{"preEnqueue", func(p *configv1.Plugins) *configv1.PluginSet { return &p.PreEnqueue }, join(func(p *points) *[]fwk.PreEnqueuePlugin { return &p.preEnqueue })},
		{"queueSort", func(p *configv1.Plugins) *configv1.PluginSet { return &p.QueueSort }, join(func(p *points) *[]fwk.QueueSortPlugin { return &p.queueSort })},
		{"preFilter", func(p *configv1.Plugins) *configv1.PluginSet { return &p.PreFilter }, join(func(p *points) *[]fwk.PreFilterPlugin { return &p.preFilter })},
		{"filter", func(p *configv1.Plugins) *configv1.PluginSet { return &p.Filter }, join(func(p *points) *[]fwk.FilterPlugin { return &p.filter })},
		{"postFilter", func(p *configv1.Plugins) *configv1.PluginSet { return &p.PostFilter }, join(func(p *points) *[]fwk.PostFilterPlugin { return &p.postFilter })},
		{
			"podGroupPostFilter", func(p *configv1.Plugins) *configv1.PluginSet { return &p.PodGroupPostFilter },
			join(func(p *points) *[]fwk.PodGroupPostFilterPlugin { return &p.groupPostFilter }),
		},
		{"preScore", func(p *configv1.Plugins) *configv1.PluginSet { return &p.PreScore }, join(func(p *points) *[]fwk.PreScorePlugin { return &p.preScore })},
		{"score", func(p *configv1.Plugins) *configv1.PluginSet { return &p.Score }, join(func(p *points) *[]fwk.ScorePlugin { return &p.score })},
		{"reserve", func(p *configv1.Plugins) *configv1.PluginSet { return &p.Reserve }, join(func(p *points) *[]fwk.ReservePlugin { return &p.reserve })},
		{"permit", func(p *configv1.Plugins) *configv1.PluginSet { return &p.Permit }, join(func(p *points) *[]fwk.PermitPlugin { return &p.permit })},
		{"preBind", func(p *configv1.Plugins) *configv1.PluginSet { return &p.PreBind }, join(func(p *points) *[]fwk.PreBindPlugin { return &p.preBind })},
		{"bind", func(p *configv1.Plugins) *configv1.PluginSet { return &p.Bind }, join(func(p *points) *[]fwk.BindPlugin { return &p.bind })},
		{"postBind", func(p *configv1.Plugins) *configv1.PluginSet { return &p.PostBind }, join(func(p *points) *[]fwk.PostBindPlugin { return &p.postBind })},
	}
}

// referred are the names of all plugins that a configuration enables anywhere.
func referred(plugins *configv1.Plugins) []string {
	var names []string
	add := func(set *configv1.PluginSet) {
		for _, p := range set.Enabled {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	add(&plugins.MultiPoint)
	for _, ph := range phases() {
		add(ph.set(plugins))
	}
	return names
}

// arrange has each plugin join the phases that it is enabled for. Those that a phase names itself and that are enabled
// for all phases, too, come first, then those enabled for all, then the rest, as with Kubernetes.
func arrange(plugins *configv1.Plugins, made map[string]fwk.Plugin) (*points, error) {
	p := &points{}
	for _, ph := range phases() {
		set := ph.set(plugins)
		disabled, named := sets.New[string](), sets.New[string]()
		for _, d := range set.Disabled {
			disabled.Insert(d.Name)
		}
		for _, e := range set.Enabled {
			if named.Has(e.Name) {
				return nil, fmt.Errorf("plugins.%s.enabled: %q is there twice", ph.name, e.Name)
			}
			if !ph.join(nil, made[e.Name]) {
				return nil, fmt.Errorf("plugins.%s.enabled: %q has nothing for this phase", ph.name, e.Name)
			}
			named.Insert(e.Name)
		}
		var both, multi, rest []string
		everywhere := sets.New[string]()
		for _, e := range plugins.MultiPoint.Enabled {
			if everywhere.Has(e.Name) {
				return nil, fmt.Errorf("plugins.multiPoint.enabled: %q is there twice", e.Name)
			}
			everywhere.Insert(e.Name)
			if !named.Has(e.Name) && !disabled.Has(e.Name) && !disabled.Has("*") && ph.join(nil, made[e.Name]) {
				multi = append(multi, e.Name)
			}
		}
		for _, e := range set.Enabled {
			if everywhere.Has(e.Name) {
				both = append(both, e.Name)
			} else {
				rest = append(rest, e.Name)
			}
		}
		for _, name := range slices.Concat(both, multi, rest) {
			ph.join(p, made[name])
		}
	}
	return p, nil
}

// weights are those of the plugins that score. One that is given none has the weight 1.
func weights(plugins *configv1.Plugins, p *points) ([]int64, error) {
	given := map[string]int64{}
	for _, set := range []configv1.PluginSet{plugins.MultiPoint, plugins.Score} {
		for _, e := range set.Enabled {
			if e.Weight != nil && *e.Weight != 0 {
				given[e.Name] = int64(*e.Weight)
			}
		}
	}
	all := make([]int64, len(p.score))
	sum := int64(0)
	for i, plugin := range p.score {
		all[i] = 1
		if w, ok := given[plugin.Name()]; ok {
			all[i] = w
		}
		if all[i] < 0 || all[i] > fwk.MaxTotalScore/fwk.MaxScore-sum {
			return nil, fmt.Errorf("plugins.score.enabled: the weight of %q is %d, which scores cannot be multiplied by", plugin.Name(), all[i])
		}
		sum += all[i]
	}
	return all, nil
}
