package plugin_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/control/scheduler/profile"
)

// TestSign says which pods are alike: those that no plugin tells apart.
func TestSign(t *testing.T) {
	s, _ := newScheduler(t)
	const plain = `{name: a, image: x, resources: {requests: {cpu: 100m, memory: 1Mi}}}`
	base := `{metadata: {labels: {a: b}}, spec: {containers: [` + plain + `]}}`
	for name, test := range map[string]struct {
		pod, other string
		alike      bool
	}{
		"the same":              {base, base, true},
		"a tag that is meant":   {base, `{metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: "x:latest", resources: {requests: {cpu: 0.1, memory: 1Mi}}}]}}`, true},
		"an environment":        {base, `{metadata: {labels: {a: b}}, spec: {containers: [{name: z, env: [{name: a}], image: x, resources: {requests: {cpu: 100m, memory: 1Mi}}}]}}`, true},
		"labels":                {base, `{metadata: {labels: {a: c}}, spec: {containers: [` + plain + `]}}`, false},
		"another namespace":     {base, `{metadata: {namespace: other, labels: {a: b}}, spec: {containers: [` + plain + `]}}`, false},
		"requests":              {base, `{metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: x, resources: {requests: {cpu: 200m, memory: 1Mi}}}]}}`, false},
		"how many ask for none": {`{spec: {containers: [{image: x}]}}`, `{spec: {containers: [{image: x}, {image: "y:1"}]}}`, false},
		"an image twice": {
			`{spec: {containers: [` + plain + `], initContainers: [{image: y}]}}`, `{spec: {containers: [` + plain + `], initContainers: [{image: y}, {image: y}]}}`, false,
		},
		"a port of another protocol": {
			`{spec: {containers: [{image: x, ports: [{hostPort: 53, protocol: TCP}]}]}}`, `{spec: {containers: [{image: x, ports: [{hostPort: 53, protocol: UDP}]}]}}`, false,
		},
		"a port of another address": {
			`{spec: {containers: [{image: x, ports: [{hostPort: 53, hostIP: 1.2.3.4}]}]}}`, `{spec: {containers: [{image: x, ports: [{hostPort: 53}]}]}}`, false,
		},
		"a selector":  {base, `{metadata: {labels: {a: b}}, spec: {nodeSelector: {a: b}, containers: [` + plain + `]}}`, false},
		"tolerations": {base, `{metadata: {labels: {a: b}}, spec: {tolerations: [{operator: Exists}], containers: [` + plain + `]}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := s.profile.Sign(t.Context(), podOf(t, test.pod)), s.profile.Sign(t.Context(), podOf(t, test.other))
			if a == "" || b == "" {
				t.Fatalf("no signature: %q, %q", a, b)
			}
			if (a == b) != test.alike {
				t.Errorf("%q\n%q", a, b)
			}
		})
	}
}

// TestSignFar says which pods are alike for whom pods on other nodes matter. Who knows of nothing else is not told that
// they are.
func TestSignFar(t *testing.T) {
	s, _ := newScheduler(t)
	const zone = "topology.kubernetes.io/zone"
	affine, spread := near("podAffinity", "required", zone, "red"), spreading("ScheduleAnyway")
	in := func(text, with string) string { return strings.Replace(text, `{metadata: {`, `{metadata: {`+with, 1) }
	spec := func(text, with string) string { return strings.Replace(text, `spec: {`, `spec: {`+with, 1) }
	for name, test := range map[string]struct {
		pod, other string
		alike      bool
	}{
		"affinity":                   {affine, affine, true},
		"a name":                     {affine, in(affine, `name: other, `), true},
		"a namespace":                {affine, in(affine, `namespace: other, `), false},
		"a color":                    {affine, near("podAffinity", "required", zone, "blue"), false},
		"a topology":                 {affine, near("podAffinity", "required", "kubernetes.io/hostname", "red"), false},
		"away":                       {affine, near("podAntiAffinity", "required", zone, "red"), false},
		"would like":                 {affine, near("podAffinity", "preferred", zone, "red"), false},
		"spread":                     {spread, spread, true},
		"spread, demanded":           {spread, spreading("DoNotSchedule"), false},
		"spread, another namespace":  {spread, in(spread, `namespace: other, `), false},
		"spread, nodes that count":   {spread, spec(spread, `nodeSelector: {a: b}, `), false},
		"spread, taints that do not": {spread, spec(spread, `tolerations: [{operator: Exists}], `), false},
		"spread, and not":            {spread, `{metadata: {labels: {color: blue}}, spec: {` + container + `}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			pods := [2]*corev1.Pod{podOf(t, test.pod), podOf(t, test.other)}
			a, b := profile.SignFar(t.Context(), s.profile, pods[0]), profile.SignFar(t.Context(), s.profile, pods[1])
			if a == "" || b == "" {
				t.Fatalf("no signature: %q, %q", a, b)
			}
			if (a == b) != test.alike {
				t.Errorf("%q\n%q", a, b)
			}
			for _, pod := range pods {
				far := profile.FarsightFor(s.profile, pod, false)
				if signed := s.profile.Sign(t.Context(), pod) != ""; signed != (far == nil) {
					t.Errorf("a pod for which others matter, which is %t, is signed for all: %t", far != nil, signed)
				}
			}
		})
	}
}
