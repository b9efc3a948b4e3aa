package pressure

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction"
)

// reasonOf is kubelet's of the event that a condition holds, or does not any more.
func reasonOf(of corev1.NodeConditionType, holds bool) string {
	switch {
	case of == corev1.NodeMemoryPressure && holds:
		return "NodeHasInsufficientMemory"
	case of == corev1.NodeMemoryPressure:
		return "NodeHasSufficientMemory"
	case of == corev1.NodeDiskPressure && holds:
		return "NodeHasDiskPressure"
	case of == corev1.NodeDiskPressure:
		return "NodeHasNoDiskPressure"
	case holds:
		return "NodeHasInsufficientPID"
	}
	return "NodeHasSufficientPID"
}

// Conditions implements [eviction.Node].
func (n *Node) Conditions(now eviction.Conditions) {
	n.mu.Lock()
	before := n.conditions
	n.conditions = slices.Clone(now)
	told := n.told
	n.mu.Unlock()
	changed, eased := false, false
	for _, c := range now {
		was := slices.ContainsFunc(before, func(b eviction.Condition) bool { return b.Type == c.Type && b.Status })
		if was == c.Status {
			continue
		}
		changed, eased = true, eased || was
		reason := reasonOf(c.Type, c.Status)
		n.cfg.Events.Node(corev1.EventTypeNormal, reason, "Node status is now: %s", reason)
		n.log.Info("condition of the node has changed", "condition", string(c.Type), "status", c.Status, "reason", c.Reason)
	}
	if changed && told != nil {
		told()
	}
	if eased {
		n.cfg.Again()
	}
}

// Notify has fn called whenever conditions hold that have not held before, or hold no more. It must not wait.
func (n *Node) Notify(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = fn
}

// Holding are the conditions that hold.
func (n *Node) Holding() []corev1.NodeConditionType {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []corev1.NodeConditionType
	for _, c := range n.conditions {
		if c.Status {
			out = append(out, c.Type)
		}
	}
	return out
}
