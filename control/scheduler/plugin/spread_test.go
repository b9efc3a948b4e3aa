package plugin_test

import (
	"testing"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
)

func TestInterPodAffinityFilter(t *testing.T) {
	near := func(term string) string {
		return `affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [` + term + `]}}`
	}
	away := func(term string) string {
		return `affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [` + term + `]}}`
	}
	const (
		web     = `{topologyKey: zone, labelSelector: {matchLabels: {app: web}}}`
		webHost = `{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}`
		db      = `{topologyKey: zone, labelSelector: {matchLabels: {app: db}}}`
		onA1    = `{metadata: {labels: {app: web}}, spec: {nodeName: a1}}`
		onX1    = `{metadata: {labels: {app: web}}, spec: {nodeName: x1}}`
		otherA1 = `{metadata: {namespace: other, labels: {app: web}}, spec: {nodeName: a1}}`
	)
	everywhere := func(why string) map[string]string {
		return map[string]string{"a1": why, "a2": why, "b1": why, "x1": why}
	}
	for name, c := range map[string]filterCase{
		"nothing":         {pod: `{}`, pods: []string{onA1}},
		"near in a zone":  {pod: `{spec: {` + near(web) + `}}`, pods: []string{onA1}, want: map[string]string{"b1": noneNear, "x1": noneNear}},
		"near on a host":  {pod: `{spec: {` + near(webHost) + `}}`, pods: []string{onA1}, want: map[string]string{"a2": noneNear, "b1": noneNear, "x1": noneNear}},
		"both":            {pod: `{spec: {` + near(web+`, `+webHost) + `}}`, pods: []string{onA1}, want: map[string]string{"a2": noneNear, "b1": noneNear, "x1": noneNear}},
		"none to be near": {pod: `{spec: {` + near(web) + `}}`, want: everywhere(noneNear)},
		"the first":       {pod: `{metadata: {labels: {app: web}}, spec: {` + near(web) + `}}`, want: map[string]string{"x1": noneNear}},
		"two that no pod is at once": {
			pod: `{spec: {` + near(web+`, `+db) + `}}`, want: everywhere(noneNear),
			pods: []string{onA1, `{metadata: {labels: {app: db}}, spec: {nodeName: a1}}`},
		},
		"in no domain":         {pod: `{spec: {` + near(web) + `}}`, pods: []string{onX1}, want: everywhere(noneNear)},
		"in another namespace": {pod: `{spec: {` + near(web) + `}}`, pods: []string{otherA1}, want: everywhere(noneNear)},
		"namespaces": {
			pod:  `{spec: {` + near(`{topologyKey: zone, namespaces: [other], labelSelector: {matchLabels: {app: web}}}`) + `}}`,
			pods: []string{otherA1}, want: map[string]string{"b1": noneNear, "x1": noneNear},
		},
		"namespace selector": {
			pod:  `{spec: {` + near(`{topologyKey: zone, namespaceSelector: {matchLabels: {team: two}}, labelSelector: {matchLabels: {app: web}}}`) + `}}`,
			pods: []string{otherA1}, want: map[string]string{"b1": noneNear, "x1": noneNear},
		},
		"all namespaces": {
			pod:  `{spec: {` + near(`{topologyKey: zone, namespaceSelector: {}, labelSelector: {matchLabels: {app: web}}}`) + `}}`,
			pods: []string{otherA1}, want: map[string]string{"b1": noneNear, "x1": noneNear},
		},
		"no selector means nothing": {pod: `{spec: {` + near(`{topologyKey: zone}`) + `}}`, pods: []string{onA1}, want: everywhere(noneNear)},
		"away in a zone":            {pod: `{spec: {` + away(web) + `}}`, pods: []string{onA1}, want: map[string]string{"a1": someNear, "a2": someNear}},
		"away on a host":            {pod: `{spec: {` + away(webHost) + `}}`, pods: []string{onA1}, want: map[string]string{"a1": someNear}},
		"one of two": {
			pod: `{spec: {` + away(web+`, `+db) + `}}`, pods: []string{onA1}, want: map[string]string{"a1": someNear, "a2": someNear},
		},
		"the other minds": {
			pod: `{metadata: {labels: {app: web}}}`, pods: []string{`{spec: {nodeName: a1, ` + away(web) + `}}`},
			want: map[string]string{"a1": existing, "a2": existing},
		},
		"the other minds on its host": {
			pod: `{metadata: {labels: {app: web}}}`, pods: []string{`{spec: {nodeName: a1, ` + away(webHost) + `}}`},
			want: map[string]string{"a1": existing},
		},
		"the other minds a namespace": {
			pod: `{metadata: {labels: {app: web}}}`, want: map[string]string{"a1": existing, "a2": existing},
			pods: []string{`{metadata: {namespace: other}, spec: {nodeName: a1, ` +
				away(`{topologyKey: zone, namespaceSelector: {matchLabels: {team: one}}, labelSelector: {matchLabels: {app: web}}}`) + `}}`},
		},
		"the other minds others": {pod: `{metadata: {labels: {app: db}}}`, pods: []string{`{spec: {nodeName: a1, ` + away(web) + `}}`}},
	} {
		c.plugin, c.nodes = interpodaffinity.New, []string{a1, a2, b1, x1}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func TestSpreadFilter(t *testing.T) {
	spread := func(more string) string {
		return `topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule,
			labelSelector: {matchLabels: {app: web}}` + more + `}]`
	}
	web := func(on string) string { return `{metadata: {labels: {app: web}}, spec: {nodeName: ` + on + `}}` }
	const (
		tainted2 = `{metadata: {name: c1, labels: {zone: c}}, spec: {taints: [{key: k, effect: NoSchedule}]}}`
		gone     = `{metadata: {labels: {app: web}, deletionTimestamp: "2020-01-01T00:00:00Z"}, spec: {nodeName: a1}}`
	)
	zoneA := map[string]string{"a1": skewed, "a2": skewed, "x1": skewNoLabel}
	noX := map[string]string{"x1": skewNoLabel}
	for name, c := range map[string]filterCase{
		"nothing":          {pod: `{}`, pods: []string{web("a1")}},
		"empty":            {pod: `{metadata: {labels: {app: web}}, spec: {` + spread("") + `}}`, want: noX},
		"one":              {pod: `{metadata: {labels: {app: web}}, spec: {` + spread("") + `}}`, pods: []string{web("a1")}, want: zoneA},
		"not itself":       {pod: `{spec: {` + spread("") + `}}`, pods: []string{web("a1")}, want: noX},
		"even":             {pod: `{metadata: {labels: {app: web}}, spec: {` + spread("") + `}}`, pods: []string{web("a1"), web("b1")}, want: noX},
		"that ends":        {pod: `{metadata: {labels: {app: web}}, spec: {` + spread("") + `}}`, pods: []string{gone}, want: noX},
		"other namespace":  {pod: `{metadata: {labels: {app: web}}, spec: {` + spread("") + `}}`, pods: []string{`{metadata: {namespace: other, labels: {app: web}}, spec: {nodeName: a1}}`}, want: noX},
		"too few domains":  {pod: `{metadata: {labels: {app: web}}, spec: {` + spread(", minDomains: 3") + `}}`, pods: []string{web("a1"), web("b1")}, want: map[string]string{"a1": skewed, "a2": skewed, "b1": skewed, "x1": skewNoLabel}},
		"enough domains":   {pod: `{metadata: {labels: {app: web}}, spec: {` + spread(", minDomains: 2") + `}}`, pods: []string{web("a1"), web("b1")}, want: noX},
		"affinity honored": {pod: `{metadata: {labels: {app: web}}, spec: {nodeSelector: {zone: a}, ` + spread("") + `}}`, pods: []string{web("a1")}, want: noX},
		"affinity ignored": {pod: `{metadata: {labels: {app: web}}, spec: {nodeSelector: {zone: a}, ` + spread(", nodeAffinityPolicy: Ignore") + `}}`, pods: []string{web("a1")}, want: zoneA},
		"taints ignored": {
			nodes: []string{a1, b1, tainted2}, pods: []string{web("a1"), web("b1")}, want: map[string]string{"a1": skewed, "b1": skewed},
			pod: `{metadata: {labels: {app: web}}, spec: {` + spread("") + `}}`,
		},
		"taints honored": {
			nodes: []string{a1, b1, tainted2}, pods: []string{web("a1"), web("b1")},
			pod: `{metadata: {labels: {app: web}}, spec: {` + spread(", nodeTaintsPolicy: Honor") + `}}`,
		},
		"keys": {
			pod:  `{metadata: {labels: {app: web, v: "2"}}, spec: {` + spread(", matchLabelKeys: [v]") + `}}`,
			pods: []string{web("a1"), web("a1")}, want: noX,
		},
		"keys that match": {
			pod:  `{metadata: {labels: {app: web, v: "2"}}, spec: {` + spread(", matchLabelKeys: [v]") + `}}`,
			pods: []string{`{metadata: {labels: {app: web, v: "2"}}, spec: {nodeName: a1}}`}, want: zoneA,
		},
		"preferred does not filter": {
			pod: `{metadata: {labels: {app: web}}, spec: {topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1,
				whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}]}}`, pods: []string{web("a1")},
		},
		"two": {
			pod: `{metadata: {labels: {app: web}}, spec: {topologySpreadConstraints: [
				{topologyKey: zone, maxSkew: 2, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}},
				{topologyKey: kubernetes.io/hostname, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]}}`,
			pods: []string{web("a1")}, want: map[string]string{"a1": skewed, "x1": skewNoLabel},
		},
	} {
		c.plugin = podtopologyspread.New
		if c.nodes == nil {
			c.nodes = []string{a1, a2, b1, x1}
		}
		t.Run(name, func(t *testing.T) { c.run(t) })
	}
}

func TestSpreadDefaults(t *testing.T) {
	args := parse[configv1.PodTopologySpreadArgs](t, `{defaultingType: List, defaultConstraints: [
		{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]}`)
	w := newWorld(nodesOf(t, []string{a1, b1}), podsOf(t, []string{`{metadata: {labels: {app: web}}, spec: {nodeName: a1}}`}))
	p := make1(t, podtopologyspread.New, args, w)
	pod := podOf(t, `{metadata: {labels: {app: web}}}`)
	if got := verdicts(t, p, w, pod); len(got) > 0 {
		t.Errorf("nobody says which pods belong together: %s", show(got))
	}
	service := parse[service](t, `{metadata: {name: s, namespace: default}, spec: {selector: {app: web}}}`)
	if err := w.objects.Core().V1().Services().Informer().GetIndexer().Add(service); err != nil {
		t.Fatal(err)
	}
	if got := verdicts(t, p, w, pod); show(got) != show(map[string]string{"a1": skewed}) {
		t.Errorf("with a service: %s", show(got))
	}
	if got := verdicts(t, p, w, podOf(t, `{metadata: {labels: {app: db}}}`)); len(got) > 0 {
		t.Errorf("of another service: %s", show(got))
	}
	owned := podOf(t, `{metadata: {labels: {app: set}, ownerReferences: [
		{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: u, controller: true}]}}`)
	set := parse[replicaSet](t, `{metadata: {name: r, namespace: default}, spec: {selector: {matchLabels: {app: web}}}}`)
	if err := w.objects.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(set); err != nil {
		t.Fatal(err)
	}
	if got := verdicts(t, p, w, owned); len(got) > 0 {
		t.Errorf("it does not count itself: %s", show(got))
	}
	owned.Labels["app"] = "web"
	if got := verdicts(t, p, w, owned); show(got) != show(map[string]string{"a1": skewed}) {
		t.Errorf("of a set: %s", show(got))
	}
}
