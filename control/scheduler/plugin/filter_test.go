package plugin_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-node/berth/control/scheduler/plugin/nodeaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodedeclaredfeatures"
	"github.com/berth-node/berth/control/scheduler/plugin/nodename"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeports"
	"github.com/berth-node/berth/control/scheduler/plugin/noderesourcesfit"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeunschedulable"
	"github.com/berth-node/berth/control/scheduler/plugin/tainttoleration"
)

// Kubernetes' own words.
const (
	noName      = "node(s) didn't match the requested node name!"
	cordoned    = "node(s) were unschedulable!"
	tainted     = "node(s) had untolerated taint(s)!"
	noAffinity  = "node(s) didn't match Pod's node affinity/selector!"
	enforced    = "node(s) didn't match scheduler-enforced node affinity!"
	conflict    = "pod affinity terms conflict!"
	noPorts     = "node(s) didn't have free ports for the requested pod ports"
	noFeatures  = "node(s) didn't match Pod's required features!"
	noneNear    = "node(s) didn't match pod affinity rules!"
	someNear    = "node(s) didn't match pod anti-affinity rules"
	existing    = "node(s) didn't satisfy existing pods anti-affinity rules"
	skewed      = "node(s) didn't match pod topology spread constraints"
	skewNoLabel = "node(s) didn't match pod topology spread constraints (missing required label)!"
)

const (
	// Nodes of the tests: two zones, two nodes in one of them.
	a1 = `{metadata: {name: a1, labels: {zone: a, kubernetes.io/hostname: a1}}}`
	a2 = `{metadata: {name: a2, labels: {zone: a, kubernetes.io/hostname: a2}}}`
	b1 = `{metadata: {name: b1, labels: {zone: b, kubernetes.io/hostname: b1}}}`
	x1 = `{metadata: {name: x1}}` // without labels
)

type filterCase struct {
	plugin factory
	args   runtime.Object
	nodes  []string
	pods   []string
	pod    string
	want   map[string]string // of nodes that are not taken
}

func TestFilter(t *testing.T) {
	for name, c := range map[string]filterCase{
		"no name":    {plugin: nodename.New, nodes: []string{a1}, pod: `{}`},
		"named":      {plugin: nodename.New, nodes: []string{a1, a2}, pod: `{spec: {nodeName: a1}}`, want: map[string]string{"a2": noName}},
		"uncordoned": {plugin: nodeunschedulable.New, nodes: []string{a1}, pod: `{}`},
		"cordoned": {
			plugin: nodeunschedulable.New, nodes: []string{`{metadata: {name: node}, spec: {unschedulable: true}}`}, pod: `{}`,
			want: map[string]string{"node": cordoned},
		},
		"cordoned and tolerated": {
			plugin: nodeunschedulable.New, nodes: []string{`{metadata: {name: node}, spec: {unschedulable: true}}`},
			pod: `{spec: {tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]}}`,
		},
		"taints": {
			plugin: tainttoleration.New,
			nodes: []string{
				`{metadata: {name: none}}`,
				`{metadata: {name: keeps}, spec: {taints: [{key: k, value: v, effect: NoSchedule}]}}`,
				`{metadata: {name: ends}, spec: {taints: [{key: k, value: w, effect: NoExecute}]}}`,
				`{metadata: {name: rather}, spec: {taints: [{key: k, value: w, effect: PreferNoSchedule}]}}`,
				`{metadata: {name: two}, spec: {taints: [{key: k, value: v, effect: NoSchedule}, {key: l, effect: NoSchedule}]}}`,
			},
			pod:  `{spec: {tolerations: [{key: k, value: v, effect: NoSchedule}]}}`,
			want: map[string]string{"ends": tainted, "two": tainted},
		},
		"all tolerated": {
			plugin: tainttoleration.New, pod: `{spec: {tolerations: [{operator: Exists}]}}`,
			nodes: []string{`{metadata: {name: node}, spec: {taints: [{key: k, value: v, effect: NoSchedule}, {key: l, effect: NoExecute}]}}`},
		},
	} {
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func (c filterCase) run(t *testing.T) {
	w := newWorld(nodesOf(t, c.nodes), podsOf(t, c.pods),
		nsOf(t, `{metadata: {name: default, labels: {team: one}}}`), nsOf(t, `{metadata: {name: other, labels: {team: two}}}`))
	got := verdicts(t, make1(t, c.plugin, c.args, w), w, podOf(t, c.pod))
	if show(got) != show(c.want) {
		t.Errorf("got  %s\nwant %s", show(got), show(c.want))
	}
}

func TestNodeAffinityFilter(t *testing.T) {
	zoneB := `{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
		{matchExpressions: [{key: zone, operator: In, values: [b]}]}]}}}}`
	named := func(terms string) string {
		return `{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` + terms + `]}}}}}`
	}
	onlyA := parse[configv1.NodeAffinityArgs](t, `{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
		{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}`)
	for name, c := range map[string]filterCase{
		"nothing":  {pod: `{}`},
		"selector": {pod: `{spec: {nodeSelector: {zone: a}}}`, want: map[string]string{"b1": noAffinity, "x1": noAffinity}},
		"term":     {pod: `{spec: ` + zoneB + `}`, want: map[string]string{"a1": noAffinity, "a2": noAffinity, "x1": noAffinity}},
		"both": {
			pod:  `{spec: {nodeSelector: {zone: a}, ` + zoneB[1:] + `}`,
			want: map[string]string{"a1": noAffinity, "a2": noAffinity, "b1": noAffinity, "x1": noAffinity},
		},
		"no terms": {pod: named(``), want: map[string]string{"a1": noAffinity, "a2": noAffinity, "b1": noAffinity, "x1": noAffinity}},
		"empty":    {pod: named(`{}`), want: map[string]string{"a1": noAffinity, "a2": noAffinity, "b1": noAffinity, "x1": noAffinity}},
		"a name": {
			pod:  named(`{matchFields: [{key: metadata.name, operator: In, values: [a2]}]}`),
			want: map[string]string{"a1": "left out", "b1": "left out", "x1": "left out"},
		},
		"one of two names": {
			pod: named(`{matchFields: [{key: metadata.name, operator: In, values: [a2]}]},
				{matchFields: [{key: metadata.name, operator: In, values: [b1]}]}`),
			want: map[string]string{"a1": "left out", "x1": "left out"},
		},
		"a name and not": {
			pod: named(`{matchFields: [{key: metadata.name, operator: In, values: [a2]}]},
				{matchExpressions: [{key: zone, operator: DoesNotExist}]}`),
			want: map[string]string{"a1": noAffinity, "b1": noAffinity},
		},
		"conflict": {
			pod:  named(`{matchFields: [{key: metadata.name, operator: In, values: [a2]}, {key: metadata.name, operator: In, values: [b1]}]}`),
			want: map[string]string{"a1": conflict, "a2": conflict, "b1": conflict, "x1": conflict},
		},
		"added":          {args: onlyA, pod: `{}`, want: map[string]string{"b1": enforced, "x1": enforced}},
		"added and own":  {args: onlyA, pod: `{spec: ` + zoneB + `}`, want: map[string]string{"a1": noAffinity, "a2": noAffinity, "b1": enforced, "x1": enforced}},
		"gt":             {pod: named(`{matchExpressions: [{key: zone, operator: Gt, values: ["1"]}]}`), want: map[string]string{"a1": noAffinity, "a2": noAffinity, "b1": noAffinity, "x1": noAffinity}},
		"does not exist": {pod: named(`{matchExpressions: [{key: zone, operator: DoesNotExist}]}`), want: map[string]string{"a1": noAffinity, "a2": noAffinity, "b1": noAffinity}},
	} {
		c.plugin, c.nodes = nodeaffinity.New, []string{a1, a2, b1, x1}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func TestNodePortsFilter(t *testing.T) {
	with := func(ports string) string { return `{spec: {containers: [{name: c, ports: [` + ports + `]}]}}` }
	holds := func(ports string) string {
		return `{spec: {nodeName: a1, containers: [{name: c, ports: [` + ports + `]}]}}`
	}
	taken := map[string]string{"a1": noPorts}
	for name, c := range map[string]filterCase{
		"none":            {pod: with(`{containerPort: 80}`), pods: []string{holds(`{hostPort: 80, containerPort: 80}`)}},
		"taken":           {pod: with(`{hostPort: 80}`), pods: []string{holds(`{hostPort: 80}`)}, want: taken},
		"other port":      {pod: with(`{hostPort: 81}`), pods: []string{holds(`{hostPort: 80}`)}},
		"other protocol":  {pod: with(`{hostPort: 80, protocol: UDP}`), pods: []string{holds(`{hostPort: 80}`)}},
		"other addresses": {pod: with(`{hostPort: 80, hostIP: 10.0.0.1}`), pods: []string{holds(`{hostPort: 80, hostIP: 10.0.0.2}`)}},
		"all addresses":   {pod: with(`{hostPort: 80}`), pods: []string{holds(`{hostPort: 80, hostIP: 10.0.0.2}`)}, want: taken},
		"second port":     {pod: with(`{hostPort: 81}, {hostPort: 80}`), pods: []string{holds(`{hostPort: 80}`)}, want: taken},
		"init container": {
			pod: `{spec: {initContainers: [{name: i, ports: [{hostPort: 80}]}]}}`, pods: []string{holds(`{hostPort: 80}`)},
		},
		"sidecar": {
			pod:  `{spec: {initContainers: [{name: i, restartPolicy: Always, ports: [{hostPort: 80}]}]}}`,
			pods: []string{holds(`{hostPort: 80}`)}, want: taken,
		},
	} {
		c.plugin, c.nodes = nodeports.New, []string{a1, b1}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func TestFeaturesFilter(t *testing.T) {
	const needs = `{spec: {containers: [{name: c, restartPolicyRules: [{action: RestartAllContainers,
		exitCodes: {operator: In, values: [1]}}]}]}}`
	for name, c := range map[string]filterCase{
		"needs nothing": {pod: `{}`},
		"needs":         {pod: needs, want: map[string]string{"a1": noFeatures}},
	} {
		c.plugin = nodedeclaredfeatures.New
		c.nodes = []string{a1, `{metadata: {name: has}, status: {declaredFeatures: [RestartAllContainersOnContainerExits]}}`}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func TestFitFilter(t *testing.T) {
	const node = `{metadata: {name: node}, status: {allocatable: {cpu: "2", memory: 1Gi, ephemeral-storage: 10Gi, pods: "3", ex.com/gpu: "2"}}}`
	asks := func(r string) string { return `{spec: {containers: [{name: c, resources: {requests: {` + r + `}}}]}}` }
	holds := func(r string) string {
		return `{spec: {nodeName: node, containers: [{name: c, resources: {requests: {` + r + `}}}]}}`
	}
	lacks := func(s string) map[string]string { return map[string]string{"node": s} }
	for name, c := range map[string]filterCase{
		"nothing":    {pod: `{}`},
		"all":        {pod: asks(`cpu: "2", memory: 1Gi, ephemeral-storage: 10Gi, ex.com/gpu: "2"`)},
		"rest":       {pod: asks(`cpu: "1"`), pods: []string{holds(`cpu: "1"`)}},
		"cpu":        {pod: asks(`cpu: 1500m`), pods: []string{holds(`cpu: "1"`)}, want: lacks("Insufficient cpu")},
		"too large":  {pod: asks(`cpu: "3"`), want: lacks("Insufficient cpu!")},
		"memory":     {pod: asks(`memory: 600Mi`), pods: []string{holds(`memory: 600Mi`)}, want: lacks("Insufficient memory")},
		"two things": {pod: asks(`ex.com/gpu: "1", memory: 600Mi`), pods: []string{holds(`memory: 600Mi, ex.com/gpu: "2"`)}, want: lacks("Insufficient memory, Insufficient ex.com/gpu")},
		"disk":       {pod: asks(`ephemeral-storage: 11Gi`), want: lacks("Insufficient ephemeral-storage!")},
		"unknown":    {pod: asks(`ex.com/tpu: "1"`), want: lacks("Insufficient ex.com/tpu!")},
		"huge pages": {pod: asks(`hugepages-2Mi: 2Mi`), want: lacks("Insufficient hugepages-2Mi!")},
		"too many":   {pod: `{}`, pods: []string{holds(``), holds(``), holds(``)}, want: lacks("Too many pods")},
		"too many too": {
			pod: asks(`cpu: "1"`), pods: []string{holds(`cpu: "2"`), holds(``), holds(``)}, want: lacks("Too many pods, Insufficient cpu"),
		},
		"overhead":  {pod: `{spec: {overhead: {cpu: "2"}, containers: [{name: c, resources: {requests: {cpu: "1"}}}]}}`, want: lacks("Insufficient cpu!")},
		"ignored":   {args: &configv1.NodeResourcesFitArgs{IgnoredResources: []string{"ex.com/tpu"}}, pod: asks(`ex.com/tpu: "1"`)},
		"group":     {args: &configv1.NodeResourcesFitArgs{IgnoredResourceGroups: []string{"ex.com"}}, pod: asks(`ex.com/tpu: "1"`)},
		"not group": {args: &configv1.NodeResourcesFitArgs{IgnoredResourceGroups: []string{"cpu"}}, pod: asks(`cpu: "3"`), want: lacks("Insufficient cpu!")},
		"init": {
			pod:  `{spec: {initContainers: [{name: i, resources: {requests: {cpu: "3"}}}], containers: [{name: c, resources: {requests: {cpu: "1"}}}]}}`,
			want: lacks("Insufficient cpu!"),
		},
		"sidecar": {
			pod: `{spec: {initContainers: [{name: i, restartPolicy: Always, resources: {requests: {cpu: "1"}}}],
				containers: [{name: c, resources: {requests: {cpu: 1500m}}}]}}`,
			want: lacks("Insufficient cpu!"),
		},
		"pod level":      {pod: `{spec: {resources: {requests: {cpu: "3"}}, containers: [{name: c, resources: {requests: {cpu: "1"}}}]}}`, want: lacks("Insufficient cpu!")},
		"pod level less": {pod: `{spec: {resources: {requests: {cpu: "2"}}, containers: [{name: c}, {name: d}]}}`},
		"being resized down": {
			pods: []string{`{spec: {nodeName: node, containers: [{name: c, resources: {requests: {cpu: 500m}}}]},
				status: {containerStatuses: [{name: c, allocatedResources: {cpu: 1500m}, resources: {requests: {cpu: 1500m}}}]}}`},
			pod: asks(`cpu: "1"`), want: lacks("Insufficient cpu"),
		},
		"being resized up": {
			pods: []string{`{spec: {nodeName: node, containers: [{name: c, resources: {requests: {cpu: 1500m}}}]},
				status: {containerStatuses: [{name: c, allocatedResources: {cpu: 500m}, resources: {requests: {cpu: 500m}}}]}}`},
			pod: asks(`cpu: "1"`), want: lacks("Insufficient cpu"),
		},
		"never resized up": {
			pods: []string{`{spec: {nodeName: node, containers: [{name: c, resources: {requests: {cpu: 1500m}}}]},
				status: {conditions: [{type: PodResizePending, status: "True", reason: Infeasible}],
				containerStatuses: [{name: c, allocatedResources: {cpu: 500m}, resources: {requests: {cpu: 500m}}}]}}`},
			pod: asks(`cpu: "1"`),
		},
		"absurd": {pod: asks(`memory: 8Ei, cpu: 9E`), want: lacks("Insufficient cpu, Insufficient memory!")},
	} {
		c.plugin, c.nodes = noderesourcesfit.New, []string{node}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}
