// Package prioritysort orders the queue by priority, and pods of one priority by how long they wait.
package prioritysort

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plugin's in configurations.
const Name = "PrioritySort"

type prioritySort struct{}

// New makes the plugin.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return prioritySort{}, nil
}

// Name is Kubernetes' name of the plugin.
func (prioritySort) Name() string { return Name }

// Less is whether the first comes before the second.
func (prioritySort) Less(first, second fwk.QueuedEntityInfo) bool {
	p, q := first.GetPriority(), second.GetPriority()
	return p > q || p == q && first.GetTimestamp().Before(second.GetTimestamp())
}
