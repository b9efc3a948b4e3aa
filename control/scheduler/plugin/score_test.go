package plugin_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-node/berth/control/scheduler/plugin/balancedallocation"
	"github.com/berth-node/berth/control/scheduler/plugin/imagelocality"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/noderesourcesfit"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
	"github.com/berth-node/berth/control/scheduler/plugin/tainttoleration"
)

type scoreCase struct {
	plugin factory
	args   runtime.Object
	nodes  []string
	pods   []string
	pod    string
	want   map[string]int64
}

func (c scoreCase) run(t *testing.T) {
	w := newWorld(nodesOf(t, c.nodes), podsOf(t, c.pods),
		nsOf(t, `{metadata: {name: default, labels: {team: one}}}`), nsOf(t, `{metadata: {name: other, labels: {team: two}}}`))
	if got := scores(t, make1(t, c.plugin, c.args, w), w, podOf(t, c.pod)); show(got) != show(c.want) {
		t.Errorf("got  %s\nwant %s", show(got), show(c.want))
	}
}

func TestScore(t *testing.T) {
	rather := func(name, taints string) string {
		return `{metadata: {name: ` + name + `}, spec: {taints: [` + taints + `]}}`
	}
	const k, l = `{key: k, effect: PreferNoSchedule}`, `{key: l, effect: PreferNoSchedule}`
	prefers := `{spec: {affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
		{weight: 30, preference: {matchExpressions: [{key: zone, operator: In, values: [a]}]}},
		{weight: 30, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [a1]}]}}]}}}}`
	added := parse[configv1.NodeAffinityArgs](t, `{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
		{weight: 60, preference: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}]}}`)
	const gib = "1073741824"
	image := func(name string, images string) string {
		return `{metadata: {name: ` + name + `}, status: {images: [` + images + `]}}`
	}
	for name, c := range map[string]scoreCase{
		"taints": {
			plugin: tainttoleration.New, nodes: []string{rather("none", ``), rather("one", k), rather("two", k+`, `+l)}, pod: `{}`,
			want: map[string]int64{"none": 100, "one": 50, "two": 0},
		},
		"a taint tolerated": {
			plugin: tainttoleration.New, nodes: []string{rather("none", ``), rather("one", k), rather("two", k+`, `+l)},
			pod:  `{spec: {tolerations: [{key: k, operator: Exists}]}}`,
			want: map[string]int64{"none": 100, "one": 100, "two": 0},
		},
		"a toleration of another effect": {
			plugin: tainttoleration.New, nodes: []string{rather("none", ``), rather("one", k)},
			pod:  `{spec: {tolerations: [{key: k, operator: Exists, effect: NoSchedule}]}}`,
			want: map[string]int64{"none": 100, "one": 0},
		},
		"affinity":       {plugin: nodeaffinity.New, nodes: []string{a1, a2, b1}, pod: prefers, want: map[string]int64{"a1": 100, "a2": 50, "b1": 0}},
		"added affinity": {plugin: nodeaffinity.New, args: added, nodes: []string{a1, a2, b1}, pod: prefers, want: map[string]int64{"a1": 100, "a2": 50, "b1": 100}},
		"no affinity":    {plugin: nodeaffinity.New, nodes: []string{a1, a2, b1}, pod: `{}`},
		"no images":      {plugin: imagelocality.New, nodes: []string{a1}, pod: `{spec: {containers: [{name: c, image: web}]}}`},
		"images": {
			plugin: imagelocality.New, pod: `{spec: {containers: [{name: c, image: reg:5000/web}]}}`,
			nodes: []string{
				image("has", `{names: ["reg:5000/web:latest"], sizeBytes: `+gib+`}`), image("other", `{names: ["reg:5000/web:v1"], sizeBytes: `+gib+`}`),
			},
			want: map[string]int64{"has": 50, "other": 0}, // half of the nodes have it
		},
	} {
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func TestResourceScore(t *testing.T) {
	node := func(name, cpu, memory string) string {
		return `{metadata: {name: ` + name + `}, status: {allocatable: {cpu: ` + cpu + `, memory: ` + memory + `, pods: 10, ex.com/gpu: 4}}}`
	}
	pod := func(on, requests string) string {
		return `{spec: {nodeName: ` + on + `, containers: [{name: c, resources: {requests: {` + requests + `}}}]}}`
	}
	args := func(text string) runtime.Object { return parse[configv1.NodeResourcesFitArgs](t, text) }
	two := []string{node("small", "4", "4Gi"), node("large", "8", "8Gi")}
	asks := `{spec: {containers: [{name: c, resources: {requests: {cpu: 2, memory: 2Gi}}}]}}`
	ratio := `{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [
		{utilization: 0, score: 0}, {utilization: 50, score: 10}, {utilization: 100, score: 0}]}}}`
	for name, c := range map[string]scoreCase{
		"least":         {pod: asks, want: map[string]int64{"small": 50, "large": 75}},
		"least in use":  {pod: asks, pods: []string{pod("large", "cpu: 6, memory: 6Gi")}, want: map[string]int64{"small": 50, "large": 0}},
		"asks for none": {pod: `{spec: {containers: [{name: c}]}}`, want: map[string]int64{"small": 96, "large": 97}},
		"most":          {args: args(`{scoringStrategy: {type: MostAllocated}}`), pod: asks, want: map[string]int64{"small": 50, "large": 25}},
		"weighed": {
			args: args(`{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}, {name: memory}]}}`),
			pod:  `{spec: {containers: [{name: c, resources: {requests: {cpu: 4, memory: 0}}}]}}`,
			want: map[string]int64{"small": 75, "large": 37},
		},
		"extended": {
			args: args(`{scoringStrategy: {type: MostAllocated, resources: [{name: ex.com/gpu}]}}`), pods: []string{pod("large", "ex.com/gpu: 2")},
			pod:  `{spec: {containers: [{name: c, resources: {requests: {ex.com/gpu: 1}}}]}}`,
			want: map[string]int64{"small": 25, "large": 75},
		},
		"extended not asked for": {
			args: args(`{scoringStrategy: {type: MostAllocated, resources: [{name: ex.com/gpu}]}}`), pod: asks,
			want: map[string]int64{"small": 0, "large": 0},
		},
		"ratio":         {args: args(ratio), pod: asks, want: map[string]int64{"small": 100, "large": 50}},
		"ratio over it": {args: args(ratio), pod: asks, pods: []string{pod("large", "cpu: 4, memory: 4Gi")}, want: map[string]int64{"small": 100, "large": 50}},
	} {
		c.plugin, c.nodes = noderesourcesfit.New, two
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
	for name, c := range map[string]scoreCase{
		"asks for none": {pod: `{spec: {containers: [{name: c}]}}`},
		"alike":         {pod: asks, want: map[string]int64{"small": 75, "large": 75}},
		"worse":         {pod: `{spec: {containers: [{name: c, resources: {requests: {cpu: 4}}}]}}`, want: map[string]int64{"small": 50, "large": 62}},
		"better": {
			pod: `{spec: {containers: [{name: c, resources: {requests: {cpu: 4}}}]}}`, pods: []string{pod("small", "memory: 4Gi")},
			want: map[string]int64{"small": 100, "large": 62},
		},
		"three": {
			args: parse[configv1.NodeResourcesBalancedAllocationArgs](t, `{resources: [{name: cpu}, {name: memory}, {name: ex.com/gpu}]}`),
			pod:  `{spec: {containers: [{name: c, resources: {requests: {cpu: 2, memory: 2Gi, ex.com/gpu: 2}}}]}}`,
			want: map[string]int64{"small": 75, "large": 69},
		},
	} {
		c.plugin, c.nodes = balancedallocation.New, two
		t.Run("balance "+name, func(t *testing.T) { c.run(t) })
	}
}

func TestInterPodScore(t *testing.T) {
	likes := func(kind string, weight string) string {
		return `affinity: {` + kind + `: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: ` + weight + `, podAffinityTerm:
			{topologyKey: zone, labelSelector: {matchLabels: {app: web}}}}]}}`
	}
	const (
		web  = `{metadata: {labels: {app: web}}, spec: {nodeName: a1}}`
		hard = `{spec: {nodeName: b1, affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
			{topologyKey: zone, labelSelector: {matchLabels: {app: web}}}]}}}}`
	)
	inA := map[string]int64{"a1": 100, "a2": 100, "b1": 0, "x1": 0}
	for name, c := range map[string]scoreCase{
		"nothing":          {pod: `{}`, pods: []string{web}},
		"likes":            {pod: `{spec: {` + likes("podAffinity", "7") + `}}`, pods: []string{web}, want: inA},
		"likes none there": {pod: `{spec: {` + likes("podAffinity", "7") + `}}`},
		"dislikes": {
			pod: `{spec: {` + likes("podAntiAffinity", "7") + `}}`, pods: []string{web},
			want: map[string]int64{"a1": 0, "a2": 0, "b1": 100, "x1": 100},
		},
		"is liked": {
			pod: `{metadata: {labels: {app: web}}}`, pods: []string{`{spec: {nodeName: a2, ` + likes("podAffinity", "7") + `}}`}, want: inA,
		},
		"is disliked": {
			pod: `{metadata: {labels: {app: web}}}`, pods: []string{`{spec: {nodeName: b1, ` + likes("podAntiAffinity", "7") + `}}`},
			want: map[string]int64{"a1": 100, "a2": 100, "b1": 0, "x1": 100},
		},
		"is demanded": {
			pod: `{metadata: {labels: {app: web}}}`, pods: []string{hard}, want: map[string]int64{"a1": 0, "a2": 0, "b1": 100, "x1": 0},
		},
		"demands do not count": {
			args: parse[configv1.InterPodAffinityArgs](t, `{hardPodAffinityWeight: 0}`), pod: `{metadata: {labels: {app: web}}}`, pods: []string{hard},
		},
		"demands count more": {
			args: parse[configv1.InterPodAffinityArgs](t, `{hardPodAffinityWeight: 10}`), pod: `{metadata: {labels: {app: web}}}`,
			pods: []string{hard, `{spec: {nodeName: a2, ` + likes("podAffinity", "5") + `}}`},
			want: map[string]int64{"a1": 50, "a2": 50, "b1": 100, "x1": 0},
		},
		"others do not count": {
			args: parse[configv1.InterPodAffinityArgs](t, `{ignorePreferredTermsOfExistingPods: true}`), pod: `{metadata: {labels: {app: web}}}`,
			pods: []string{`{spec: {nodeName: a2, ` + likes("podAffinity", "7") + `}}`},
		},
	} {
		c.plugin, c.nodes = interpodaffinity.New, []string{a1, a2, b1, x1}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func TestSpreadScore(t *testing.T) {
	const (
		pod = `{metadata: {labels: {app: web}}, spec: {topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1,
			whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}]}}`
		host = `{metadata: {labels: {app: web}}, spec: {topologySpreadConstraints: [{topologyKey: kubernetes.io/hostname, maxSkew: 1,
			whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}]}}`
		onA1 = `{metadata: {labels: {app: web}}, spec: {nodeName: a1}}`
		onB1 = `{metadata: {labels: {app: web}}, spec: {nodeName: b1}}`
	)
	for name, c := range map[string]scoreCase{
		"nothing":   {pod: `{}`, pods: []string{onA1}},
		"none":      {pod: pod, want: map[string]int64{"a1": 100, "a2": 100, "b1": 100, "x1": 0}},
		"a zone":    {pod: pod, pods: []string{onA1}, want: map[string]int64{"a1": 0, "a2": 0, "b1": 100, "x1": 0}},
		"two zones": {pod: pod, pods: []string{onA1, onA1, onB1}, want: map[string]int64{"a1": 33, "a2": 33, "b1": 100, "x1": 0}},
		"a host":    {pod: host, pods: []string{onA1}, want: map[string]int64{"a1": 0, "a2": 100, "b1": 100, "x1": 0}},
	} {
		c.plugin, c.nodes = podtopologyspread.New, []string{a1, a2, b1, x1}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}
