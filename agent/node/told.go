package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// told is which events of the node were told.
type told struct {
	boot      string
	pressures bool
	ready     corev1.ConditionStatus
}

// first tells what is told once, of a Node that is about to be written for the first time: that the machine was started
// again since the Node was written, and of conditions that the Node has not had. Their changes are told by who makes
// them.
func (t *told) first(events Events, before, after *corev1.Node) {
	if boot := after.Status.NodeInfo.BootID; t.boot != boot {
		if before != nil && before.Status.NodeInfo.BootID != "" && before.Status.NodeInfo.BootID != boot {
			events.Node(corev1.EventTypeWarning, "Rebooted", "Node %s has been rebooted, boot id: %s", after.Name, boot)
		}
		t.boot = boot
	}
	if t.pressures {
		return
	}
	t.pressures = true
	for _, p := range pressures {
		if before != nil && statusOf(before, p.of) != "" {
			continue
		}
		reason := p.event[0]
		if statusOf(after, p.of) == corev1.ConditionTrue {
			reason = p.event[1]
		}
		now(events, after.Name, reason)
	}
}

// changes tells that a node has become ready, or is no more. How it was is by the Node, once, and then by what was
// told.
func (t *told) changes(events Events, before, after *corev1.Node) {
	was := t.ready
	if was == "" {
		was = statusOf(before, corev1.NodeReady)
	}
	t.ready = statusOf(after, corev1.NodeReady)
	switch {
	case was == "" || was == t.ready:
	case t.ready == corev1.ConditionTrue:
		now(events, after.Name, "NodeReady")
	default:
		now(events, after.Name, "NodeNotReady")
	}
}

// tellSchedulable tells that somebody has changed whether the scheduler gives pods to the node.
func tellSchedulable(events Events, before, after *corev1.Node) {
	switch {
	case before == nil, after == nil, before.Spec.Unschedulable == after.Spec.Unschedulable:
	case after.Spec.Unschedulable:
		now(events, after.Name, "NodeNotSchedulable")
	default:
		now(events, after.Name, "NodeSchedulable")
	}
}

func now(events Events, node, reason string) {
	events.Node(corev1.EventTypeNormal, reason, "Node %s status is now: %s", node, reason)
}

func statusOf(n *corev1.Node, of corev1.NodeConditionType) corev1.ConditionStatus {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == of })
	if i < 0 {
		return ""
	}
	return n.Status.Conditions[i].Status
}
