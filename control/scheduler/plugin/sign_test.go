package plugin_test

import "testing"

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
	for name, text := range map[string]string{
		"affinity": near("podAffinity", "required", "zone", "red"), "spread": spreading("ScheduleAnyway"),
	} {
		if got := s.profile.Sign(t.Context(), podOf(t, text)); got != "" {
			t.Errorf("%s: a pod that is placed by itself has the signature %q", name, got)
		}
	}
}
