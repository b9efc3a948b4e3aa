package api

import (
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

// twoRequests is a claim's spec; an allocation goes with it.
const twoRequests = "{devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com, count: 2}}, {name: nic, firstAvailable: [{name: fast, deviceClassName: a}, {name: slow, deviceClassName: b}]}]}}"

const (
	gpu0 = "{request: gpu, driver: gpu.example.com, pool: node, device: gpu-0}"
	gpu1 = "{request: gpu, driver: gpu.example.com, pool: node, device: gpu-1}"
	nic  = "{request: nic/slow, driver: nic.example.com, pool: rack/7, device: nic-0}"
)

func TestResourceClaims(t *testing.T) {
	results := func(list ...string) string {
		return "spec: " + twoRequests + "\nstatus: {allocation: {devices: {results: [" + strings.Join(list, ", ") + "]}}}"
	}
	for _, tt := range []struct {
		text string
		want []string // the beginning of every error
	}{
		{"spec: {}", nil},
		{"spec: " + twoRequests, nil},
		{results(gpu0, gpu1, nic), nil},
		{"spec: {devices: {requests: [{name: all, exactly: {deviceClassName: x, allocationMode: All}}]}}\nstatus: {allocation: {devices: {results: [{request: all, driver: d, pool: p, device: a}, {request: all, driver: d, pool: p, device: b}], " +
			"config: [{source: FromClass, opaque: {driver: d, parameters: {a: 1}}}]}, nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}", nil},

		{"spec: {devices: {requests: [{name: A}, {name: b, exactly: {}}, {name: b, exactly: {deviceClassName: X_, allocationMode: Some, selectors: [{}, {cel: {expression: ''}}]}}, {name: c, exactly: {deviceClassName: x, count: -1, tolerations: [{operator: X}]}}, " +
			"{name: d, exactly: {deviceClassName: x, allocationMode: All, count: 1}}]}}", []string{
			`spec.devices.requests[0].name: Invalid value: "A"`, `spec.devices.requests[0]: Invalid value: "A": must have exactly one of exactly and firstAvailable`,
			`spec.devices.requests[1].exactly.deviceClassName: Required value`, `spec.devices.requests[2].name: Duplicate value: "b"`,
			`spec.devices.requests[2].exactly.deviceClassName: Invalid value: "X_"`, `spec.devices.requests[2].exactly.allocationMode: Unsupported value: "Some"`,
			`spec.devices.requests[2].exactly.selectors[0].cel: Required value`, `spec.devices.requests[2].exactly.selectors[1].cel.expression: Required value`,
			`spec.devices.requests[3].exactly.count: Invalid value: -1: must be greater than zero`, `spec.devices.requests[3].exactly.tolerations[0].operator: Unsupported value: "X"`,
			`spec.devices.requests[4].exactly.count: Invalid value: 1: must not be specified`,
		}},
		{"spec: {devices: {requests: [{name: a, firstAvailable: [{name: b, deviceClassName: x}, {name: b}]}], constraints: [{requests: [x]}], config: [{requests: [a, a/b, z]}, {opaque: {driver: '', parameters: []}}]}}", []string{
			`spec.devices.requests[0].firstAvailable[1].name: Duplicate value: "b"`, `spec.devices.requests[0].firstAvailable[1].deviceClassName: Required value`,
			`spec.devices.constraints[0].requests[0]: Invalid value: "x": must be the name of a request in the claim: a, a/b`,
			`spec.devices.constraints[0]: Invalid value: "": must have exactly one`, `spec.devices.config[0].requests[2]: Invalid value: "z"`, `spec.devices.config[0].opaque: Required value`,
			`spec.devices.config[1].opaque.driver: Required value`, `spec.devices.config[1].opaque.parameters: Invalid value: "<value omitted>": must be a map`,
		}},

		{results(gpu0, gpu0, nic), []string{`status.allocation.devices.results[1]: Duplicate value: "gpu.example.com/node/gpu-0"`}},
		{results(gpu0, nic), []string{`status.allocation.devices.results: Invalid value: 1: must have 2 for request "gpu"`}},
		{results(gpu0, gpu1), []string{`status.allocation.devices.results: Invalid value: 0: must have devices for exactly one alternative of request "nic"`}},
		{results(gpu0, gpu1, nic, strings.Replace(nic, "nic-0", "nic-1", 1)), []string{`status.allocation.devices.results: Invalid value: 2: must have 1 for request "nic/slow"`}},
		{results(gpu0, gpu1, nic, strings.Replace(nic, "slow", "fast", 1)), []string{`status.allocation.devices.results[3]: Duplicate value`, `status.allocation.devices.results: Invalid value: 2: must have devices for exactly one alternative of request "nic"`}},
		{results(gpu0, gpu1, nic, "{request: nic, driver: 'a b', pool: '/x', device: A}", "{}"), []string{
			`status.allocation.devices.results[3].request: Invalid value: "nic": must be the name of a request in the claim: gpu, nic, nic/fast, nic/slow`,
			`status.allocation.devices.results[3].driver: Invalid value: "a b"`, `status.allocation.devices.results[3].pool: Invalid value: "/x"`, `status.allocation.devices.results[3].device: Invalid value: "A"`,
			`status.allocation.devices.results[4].request: Required value`, `status.allocation.devices.results[4].driver: Required value`,
			`status.allocation.devices.results[4].pool: Required value`, `status.allocation.devices.results[4].device: Required value`,
		}},
		{"spec: {}\nstatus: {allocation: {devices: {config: [{source: X, requests: [a]}]}, nodeSelector: {nodeSelectorTerms: []}}}", []string{
			`status.allocation.devices.config[0].source: Unsupported value: "X"`, `status.allocation.devices.config[0].requests[0]: Invalid value: "a"`, `status.allocation.devices.config[0].opaque: Required value`,
			`status.allocation.nodeSelector.nodeSelectorTerms: Required value`,
		}},
	} {
		c := &resourcev1.ResourceClaim{}
		if err := yaml.UnmarshalStrict([]byte("metadata: {name: c, namespace: n}\n"+tt.text), c); err != nil {
			t.Fatalf("%s: %v", tt.text, err)
		}
		SetObjectDefaults(c)
		var got []string
		for _, e := range ValidateObject(c, true) {
			got = append(got, e.Error())
		}
		for _, w := range tt.want {
			if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) }) {
				t.Errorf("no %q in\n  %s\nof\n%s", w, strings.Join(got, "\n  "), tt.text)
			}
		}
		if len(got) != len(tt.want) {
			t.Errorf("%d errors, want %d:\n  %s\nof\n%s", len(got), len(tt.want), strings.Join(got, "\n  "), tt.text)
		}
	}
}

func TestResourceClaimTemplate(t *testing.T) {
	c := &resourcev1.ResourceClaimTemplate{}
	text := "metadata: {name: c, namespace: n}\nspec: {metadata: {labels: {a: b}}, spec: " + twoRequests + "}"
	if err := yaml.UnmarshalStrict([]byte(text), c); err != nil {
		t.Fatal(err)
	}
	SetObjectDefaults(c)
	if errs := ValidateObject(c, true); len(errs) > 0 {
		t.Error(errs)
	}
	if f := c.Spec.Spec.Devices.Requests[1].FirstAvailable[0]; f.Count != 1 || f.AllocationMode != resourcev1.DeviceAllocationModeExactCount {
		t.Errorf("by default an alternative is %+v", f)
	}
	c.Spec.Spec.Devices.Requests[0].Name = ""
	if errs := ValidateObject(c, true); len(errs) != 1 || errs[0].Field != "spec.spec.devices.requests[0].name" {
		t.Error(errs)
	}
}
