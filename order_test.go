package main

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/inspect"
)

// TestEvictionOrder: berth cgroups explains the order that the agent evicts by, and nothing of a pod is lost on the
// way.
func TestEvictionOrder(t *testing.T) {
	over := inspect.Pod{UID: "1", Namespace: "n", Name: "over", QOS: corev1.PodQOSBurstable, Priority: 7, Known: true, Usage: 9, Request: 5}
	low := inspect.Pod{UID: "2", Namespace: "n", Name: "low", QOS: corev1.PodQOSBestEffort, Known: true, Usage: 1}
	within := inspect.Pod{UID: "3", Namespace: "n", Name: "within", QOS: corev1.PodQOSGuaranteed, Known: true, Usage: 900, Request: 1000}
	kept := inspect.Pod{UID: "4", Namespace: "n", Name: "kept", Priority: 2e9, Known: true, Usage: 5000, Protected: true}
	unknown := inspect.Pod{UID: "5", Namespace: "n", Name: "unknown", Request: 10}
	got := evictionOrder([]inspect.Pod{within, kept, over, low, unknown})
	want := []inspect.Place{
		{Pod: unknown, Number: 1, Before: "its usage is not known, that of n/low is"},
		{Pod: low, Number: 2, Before: "its priority 0 is lower than 7 of n/over"},
		{Pod: over, Number: 3, Before: "it has more than its request, n/within has not"},
		{Pod: within, Number: 4},
		{Pod: kept},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
}
