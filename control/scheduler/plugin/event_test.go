package plugin_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin/balancedallocation"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodedeclaredfeatures"
	"github.com/berth-node/berth/control/scheduler/plugin/nodename"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeports"
	"github.com/berth-node/berth/control/scheduler/plugin/noderesourcesfit"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeunschedulable"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
	"github.com/berth-node/berth/control/scheduler/plugin/schedulinggates"
	"github.com/berth-node/berth/control/scheduler/plugin/tainttoleration"
)

type eventCase struct {
	plugin  factory
	pod     string
	event   fwk.ClusterEvent
	was, is string
	want    bool
}

// hinted is whether a plugin's hints queue a pod at an event. One that registers no hint for an event always does.
func hinted(t *testing.T, p fwk.Plugin, c eventCase) bool {
	t.Helper()
	events, err := p.(fwk.EnqueueExtensions).EventsToRegister(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	object := func(text string) any {
		switch {
		case text == "":
			return nil
		case c.event.Resource == fwk.Node:
			return nodeOf(t, text)
		case c.event.Resource == fwk.DeviceClass:
			return parse[deviceClass](t, text)
		}
		return podOf(t, text)
	}
	queue := false
	for _, e := range events {
		if e.Event.Resource != c.event.Resource || e.Event.ActionType&c.event.ActionType == 0 {
			continue
		}
		if e.QueueingHintFn == nil {
			return true
		}
		h, err := e.QueueingHintFn(klog.Background(), podOf(t, c.pod), object(c.was), object(c.is))
		if err != nil {
			t.Fatal(err)
		}
		queue = queue || h == fwk.Queue
		// What is of another kind is no reason to forget a pod.
		if h, err := e.QueueingHintFn(klog.Background(), podOf(t, c.pod), "what", nil); err == nil || h != fwk.Queue {
			t.Errorf("of another kind: %v, %v", h, err)
		}
	}
	return queue
}

func TestEvents(t *testing.T) {
	on := func(r fwk.EventResource, a fwk.ActionType) fwk.ClusterEvent {
		return fwk.ClusterEvent{Resource: r, ActionType: a}
	}
	const (
		cordon = `{metadata: {name: n1}, spec: {unschedulable: true}}`
		plain  = `{metadata: {name: n1}}`
		taint  = `{metadata: {name: n1}, spec: {taints: [{key: k, effect: NoSchedule}]}}`
		large  = `{metadata: {name: n1}, status: {allocatable: {cpu: 4, pods: 10}}}`
		larger = `{metadata: {name: n1}, status: {allocatable: {cpu: 8, pods: 10}}}`
		asks   = `{spec: {containers: [{name: c, resources: {requests: {cpu: 4}}}]}}`
		has    = `{metadata: {name: p}, spec: {nodeName: n1, containers: [{name: c, resources: {requests: {cpu: 4}}}]}}`
		less   = `{metadata: {name: p}, spec: {nodeName: n1, containers: [{name: c, resources: {requests: {cpu: 2}}}]}}`
		port   = `{spec: {containers: [{name: c, ports: [{hostPort: 80}]}]}}`
		web    = `{metadata: {name: p, labels: {app: web}}, spec: {nodeName: a1}}`
		db     = `{metadata: {name: p, labels: {app: db}}, spec: {nodeName: a1}}`
		near   = `{spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
			{topologyKey: zone, labelSelector: {matchLabels: {app: web}}}]}}}}`
		away = `{spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
			{topologyKey: zone, labelSelector: {matchLabels: {app: web}}}]}}}}`
		minds = `{metadata: {name: p}, spec: {nodeName: a1, affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
			{topologyKey: zone, labelSelector: {matchLabels: {app: web}}}]}}}}`
		spread = `{metadata: {labels: {app: web}}, spec: {topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1,
			whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]}}`
		tolerant = `{spec: {tolerations: [{key: k, operator: Exists}]}}`
	)
	for name, c := range map[string]eventCase{
		"the named node":         {nodename.New, `{spec: {nodeName: n1}}`, on(fwk.Node, fwk.Add), "", plain, true},
		"another node":           {nodename.New, `{spec: {nodeName: n2}}`, on(fwk.Node, fwk.Add), "", plain, false},
		"uncordoned":             {nodeunschedulable.New, `{}`, on(fwk.Node, fwk.UpdateNodeTaint), cordon, plain, true},
		"cordoned":               {nodeunschedulable.New, `{}`, on(fwk.Node, fwk.UpdateNodeTaint), plain, cordon, false},
		"new and cordoned":       {nodeunschedulable.New, `{}`, on(fwk.Node, fwk.Add), "", cordon, false},
		"comes to tolerate it":   {nodeunschedulable.New, `{}`, on(fwk.TargetPod, fwk.UpdatePodToleration), `{}`, `{spec: {tolerations: [{operator: Exists}]}}`, true},
		"tolerates something":    {nodeunschedulable.New, `{}`, on(fwk.TargetPod, fwk.UpdatePodToleration), `{}`, tolerant, false},
		"a taint less":           {tainttoleration.New, `{}`, on(fwk.Node, fwk.UpdateNodeTaint), taint, plain, true},
		"tolerated before":       {tainttoleration.New, tolerant, on(fwk.Node, fwk.UpdateNodeTaint), taint, plain, false},
		"a toleration more":      {tainttoleration.New, `{}`, on(fwk.TargetPod, fwk.UpdatePodToleration), `{}`, tolerant, true},
		"of another pod":         {tainttoleration.New, `{}`, on(fwk.TargetPod, fwk.UpdatePodToleration), `{metadata: {name: p}}`, `{metadata: {name: p}}`, false},
		"a label":                {nodeaffinity.New, `{spec: {nodeSelector: {zone: a}}}`, on(fwk.Node, fwk.UpdateNodeLabel), plain, a1, true},
		"another label":          {nodeaffinity.New, `{spec: {nodeSelector: {zone: b}}}`, on(fwk.Node, fwk.UpdateNodeLabel), plain, a1, false},
		"its ports":              {nodeports.New, port, on(fwk.AssignedPod, fwk.Delete), `{metadata: {name: p}, spec: {nodeName: n, containers: [{name: c, ports: [{hostPort: 80}]}]}}`, "", true},
		"other ports":            {nodeports.New, port, on(fwk.AssignedPod, fwk.Delete), `{metadata: {name: p}, spec: {nodeName: n, containers: [{name: c, ports: [{hostPort: 81}]}]}}`, "", false},
		"a node":                 {nodeports.New, port, on(fwk.Node, fwk.Add), "", plain, true},
		"a pod less":             {noderesourcesfit.New, asks, on(fwk.AssignedPod, fwk.Delete), less, "", true},
		"scaled down":            {noderesourcesfit.New, asks, on(fwk.AssignedPod, fwk.UpdatePodScaleDown), has, less, true},
		"of what it needs not":   {noderesourcesfit.New, `{}`, on(fwk.AssignedPod, fwk.UpdatePodScaleDown), has, less, false},
		"asks for less":          {noderesourcesfit.New, asks, on(fwk.TargetPod, fwk.UpdatePodScaleDown), asks, `{}`, true},
		"a node large enough":    {noderesourcesfit.New, asks, on(fwk.Node, fwk.Add), "", large, true},
		"a node too small":       {noderesourcesfit.New, asks, on(fwk.Node, fwk.Add), "", `{metadata: {name: n1}, status: {allocatable: {cpu: 2, pods: 10}}}`, false},
		"a node that grows":      {noderesourcesfit.New, asks, on(fwk.Node, fwk.UpdateNodeAllocatable), large, larger, true},
		"a node that shrinks":    {noderesourcesfit.New, asks, on(fwk.Node, fwk.UpdateNodeAllocatable), larger, large, false},
		"a class":                {noderesourcesfit.New, `{spec: {containers: [{name: c, resources: {requests: {ex.com/gpu: 1}}}]}}`, on(fwk.DeviceClass, fwk.Add), "", `{metadata: {name: c}, spec: {extendedResourceName: ex.com/gpu}}`, true},
		"another class":          {noderesourcesfit.New, asks, on(fwk.DeviceClass, fwk.Add), "", `{metadata: {name: c}, spec: {extendedResourceName: ex.com/gpu}}`, false},
		"one to be near":         {interpodaffinity.New, near, on(fwk.AssignedPod, fwk.Add), "", web, true},
		"another":                {interpodaffinity.New, near, on(fwk.AssignedPod, fwk.Add), "", db, false},
		"becomes one":            {interpodaffinity.New, near, on(fwk.AssignedPod, fwk.UpdatePodLabel), db, web, true},
		"is one no more":         {interpodaffinity.New, near, on(fwk.AssignedPod, fwk.UpdatePodLabel), web, db, false},
		"out of the way":         {interpodaffinity.New, away, on(fwk.AssignedPod, fwk.Delete), web, "", true},
		"was not in the way":     {interpodaffinity.New, away, on(fwk.AssignedPod, fwk.Delete), db, "", false},
		"that minded":            {interpodaffinity.New, `{metadata: {labels: {app: web}}}`, on(fwk.AssignedPod, fwk.Delete), minds, "", true},
		"that minded others":     {interpodaffinity.New, `{metadata: {labels: {app: db}}}`, on(fwk.AssignedPod, fwk.Delete), minds, "", false},
		"a domain":               {interpodaffinity.New, away, on(fwk.Node, fwk.Add), "", b1, true},
		"no domain":              {interpodaffinity.New, near, on(fwk.Node, fwk.Add), "", x1, false},
		"one that counts":        {podtopologyspread.New, spread, on(fwk.AssignedPod, fwk.Add), "", web, true},
		"one that does not":      {podtopologyspread.New, spread, on(fwk.AssignedPod, fwk.Add), "", db, false},
		"one less":               {podtopologyspread.New, spread, on(fwk.AssignedPod, fwk.Delete), web, "", true},
		"counts no more":         {podtopologyspread.New, spread, on(fwk.AssignedPod, fwk.UpdatePodLabel), web, db, true},
		"a zone":                 {podtopologyspread.New, spread, on(fwk.Node, fwk.Add), "", a1, true},
		"no zone":                {podtopologyspread.New, spread, on(fwk.Node, fwk.Add), "", x1, false},
		"a zone less":            {podtopologyspread.New, spread, on(fwk.Node, fwk.Delete), a1, "", true},
		"another zone":           {podtopologyspread.New, spread, on(fwk.Node, fwk.UpdateNodeLabel), a1, `{metadata: {name: a1, labels: {zone: c}}}`, true},
		"counts itself no more":  {podtopologyspread.New, spread, on(fwk.TargetPod, fwk.UpdatePodLabel), spread, `{spec: {topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]}}`, true},
		"the last gate":          {schedulinggates.New, `{spec: {schedulingGates: [{name: g}]}}`, on(fwk.TargetPod, fwk.UpdatePodSchedulingGatesEliminated), `{spec: {schedulingGates: [{name: g}]}}`, `{}`, true},
		"not the last gate":      {schedulinggates.New, `{spec: {schedulingGates: [{name: g}]}}`, on(fwk.TargetPod, fwk.UpdatePodSchedulingGatesEliminated), `{}`, `{spec: {schedulingGates: [{name: g}]}}`, false},
		"declares nothing to it": {nodedeclaredfeatures.New, `{}`, on(fwk.Node, fwk.UpdateNodeDeclaredFeature), plain, plain, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(nil, nil)
			if got := hinted(t, make1(t, c.plugin, nil, w), c); got != c.want {
				t.Errorf("queues: %v", got)
			}
		})
	}
}

func TestGatesAndOrder(t *testing.T) {
	p := make1(t, schedulinggates.New, nil, newWorld(nil, nil)).(fwk.PreEnqueuePlugin)
	if s := p.PreEnqueue(t.Context(), podOf(t, `{}`)); !s.IsSuccess() {
		t.Errorf("without gates: %v", s)
	}
	s := p.PreEnqueue(t.Context(), podOf(t, `{spec: {schedulingGates: [{name: a}, {name: b}]}}`))
	if s.Code() != fwk.UnschedulableAndUnresolvable || s.Message() != "waiting for scheduling gates: [a b]" {
		t.Errorf("with gates: %v", s)
	}
}

// TestArgs has each argument that is wrong named by its field.
func TestArgs(t *testing.T) {
	for name, c := range map[string]struct {
		plugin factory
		args   runtime.Object
		want   string
	}{
		"of another plugin": {noderesourcesfit.New, parse[affinityArgs](t, `{}`), "read arguments: "},
		"weight":            {interpodaffinity.New, parse[interPodArgs](t, `{hardPodAffinityWeight: 101}`), "hardPodAffinityWeight: "},
		"negative weight":   {interpodaffinity.New, parse[interPodArgs](t, `{hardPodAffinityWeight: -1}`), "hardPodAffinityWeight: "},
		"strategy":          {noderesourcesfit.New, parse[fitArgs](t, `{scoringStrategy: {type: Best}}`), "scoringStrategy.type: "},
		"resource weight":   {noderesourcesfit.New, parse[fitArgs](t, `{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 101}]}}`), "scoringStrategy.resources[0].weight: "},
		"no shape":          {noderesourcesfit.New, parse[fitArgs](t, `{scoringStrategy: {type: RequestedToCapacityRatio}}`), "scoringStrategy.requestedToCapacityRatio: "},
		"empty shape":       {noderesourcesfit.New, parse[fitArgs](t, `{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {}}}`), "scoringStrategy.requestedToCapacityRatio.shape: "},
		"order of a shape": {noderesourcesfit.New, parse[fitArgs](t, `{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [
			{utilization: 10, score: 1}, {utilization: 10, score: 2}]}}}`), "shape[1].utilization: "},
		"score of a shape": {noderesourcesfit.New, parse[fitArgs](t, `{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [
			{utilization: 10, score: 11}]}}}`), "shape[0].score: "},
		"shape of another": {noderesourcesfit.New, parse[fitArgs](t, `{scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {shape: [
			{utilization: 10, score: 1}]}}}`), "scoringStrategy.requestedToCapacityRatio: Forbidden"},
		"ignored":          {noderesourcesfit.New, parse[fitArgs](t, `{ignoredResources: ["a b"]}`), "ignoredResources[0]: "},
		"ignored group":    {noderesourcesfit.New, parse[fitArgs](t, `{ignoredResourceGroups: ["a.com/b"]}`), "ignoredResourceGroups[0]: "},
		"balance weight":   {balancedallocation.New, parse[balanceArgs](t, `{resources: [{name: cpu, weight: 2}]}`), "resources[0].weight: "},
		"balance twice":    {balancedallocation.New, parse[balanceArgs](t, `{resources: [{name: cpu}, {name: cpu}]}`), "resources[1].name: "},
		"system and list":  {podtopologyspread.New, parse[spreadArgs](t, `{defaultConstraints: [{topologyKey: a, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]}`), "defaultingType: "},
		"defaulting":       {podtopologyspread.New, parse[spreadArgs](t, `{defaultingType: Some}`), "defaultingType: "},
		"skew":             {podtopologyspread.New, parse[spreadArgs](t, `{defaultingType: List, defaultConstraints: [{topologyKey: a, maxSkew: 0, whenUnsatisfiable: DoNotSchedule}]}`), "defaultConstraints[0].maxSkew: "},
		"no key":           {podtopologyspread.New, parse[spreadArgs](t, `{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: "", whenUnsatisfiable: DoNotSchedule}]}`), "defaultConstraints[0].topologyKey: "},
		"action":           {podtopologyspread.New, parse[spreadArgs](t, `{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: Hope}]}`), "defaultConstraints[0].whenUnsatisfiable: "},
		"selector":         {podtopologyspread.New, parse[spreadArgs](t, `{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]}`), "defaultConstraints[0].labelSelector: "},
		"added term":       {nodeaffinity.New, parse[affinityArgs](t, `{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Is}]}]}}}`), "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: "},
		"added preference": {nodeaffinity.New, parse[affinityArgs](t, `{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchFields: [{key: a, operator: In}]}}]}}`), "addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].matchFields[0].values: "},
	} {
		if _, err := c.plugin(t.Context(), c.args, newWorld(nil, nil)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
