package nodelifecycle

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ours are the taints that follow from conditions alone. All others are somebody else's.
func ours() []string {
	return []string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
		corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
	}
}

// avoided are the keys of taints by which nothing new comes to a node.
func avoided(node *corev1.Node) []string {
	var all []string
	if key := lost(node); key != "" {
		all = append(all, key)
	}
	for kind, key := range map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: corev1.TaintNodeMemoryPressure, corev1.NodeDiskPressure: corev1.TaintNodeDiskPressure,
		corev1.NodePIDPressure: corev1.TaintNodePIDPressure, corev1.NodeNetworkUnavailable: corev1.TaintNodeNetworkUnavailable,
	} {
		if c := condition(node, kind); c != nil && c.Status == corev1.ConditionTrue {
			all = append(all, key)
		}
	}
	if node.Spec.Unschedulable {
		all = append(all, corev1.TaintNodeUnschedulable)
	}
	slices.Sort(all)
	return all
}

// lost is the key of the taint of a node that is not ready; empty: it is.
func lost(node *corev1.Node) string {
	c := condition(node, corev1.NodeReady)
	switch {
	case c == nil || c.Status == corev1.ConditionFalse:
		return corev1.TaintNodeNotReady
	case c.Status == corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable
	}
	return ""
}

// taint gives a node the taints of its conditions. It returns when the node is to be looked at again, since others were
// given up just now.
func (k *keeper) taint(ctx context.Context, node *corev1.Node) (time.Duration, error) {
	now := k.now()
	evict, again, err := k.evict(node, now)
	if err != nil {
		return 0, err
	}
	want := tainted(node.Spec.Taints, avoided(node), evict, metav1.NewTime(now))
	if slices.EqualFunc(node.Spec.Taints, want, func(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }) {
		return again, nil
	}
	node = node.DeepCopy()
	node.Spec.Taints = want
	_, err = k.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		k.spare(node, now)
		return 0, fmt.Errorf("taint node %s: %w", node.Name, err)
	}
	return again, nil
}

// spare takes back that a node was given up, which would keep its next try waiting for its own turn.
func (k *keeper) spare(node *corev1.Node, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.evicted[zoneOf(node)].Equal(at) {
		delete(k.evicted, zoneOf(node))
	}
}

// tainted are the taints of a node: those of others, those by which nothing comes, and the one by which pods go.
func tainted(have []corev1.Taint, avoid []string, evict string, now metav1.Time) []corev1.Taint {
	var all []corev1.Taint
	keep := func(t corev1.Taint) bool {
		switch {
		case !slices.Contains(ours(), t.Key):
			return true
		case t.Effect == corev1.TaintEffectNoSchedule:
			return slices.Contains(avoid, t.Key)
		case t.Effect == corev1.TaintEffectNoExecute:
			return t.Key == evict || t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable
		}
		return true
	}
	for _, t := range have {
		if keep(t) {
			all = append(all, t)
		}
	}
	add := func(t corev1.Taint) {
		if !slices.ContainsFunc(all, func(o corev1.Taint) bool { return o.MatchTaint(&t) }) {
			t.TimeAdded = &now
			all = append(all, t)
		}
	}
	for _, key := range avoid {
		add(corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	if evict != "" {
		add(corev1.Taint{Key: evict, Effect: corev1.TaintEffectNoExecute})
	}
	return all
}

// evict is the key of the taint by which the pods of a node go, or when to ask again. Where no node is ready, it is
// rather this process that is cut off, and pods have nowhere to go; where most of a zone are not, it is rather the zone
// that is cut off, whose pods may be well.
func (k *keeper) evict(node *corev1.Node, now time.Time) (string, time.Duration, error) {
	key := lost(node)
	if key == "" || condition(node, corev1.NodeReady) == nil {
		return "", 0, nil
	}
	all, err := k.nodes.List(labels.Everything())
	if err != nil {
		return "", 0, fmt.Errorf("list nodes: %w", err)
	}
	zones := zonesOf(all, isReady)
	k.mu.Lock()
	defer k.mu.Unlock()
	if isDark(zones) {
		for name := range zones {
			k.cut[name] = true
		}
		return "", 0, nil
	}
	if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady)
	}) {
		return key, 0, nil // it is given up already
	}
	if left := k.wait(zoneOf(node), all, zones, now); left > 0 {
		return "", left, nil
	}
	k.evicted[zoneOf(node)] = now
	return key, 0, nil
}

// wait is how long it is until a node of a zone may be given up, or until to ask again. The caller has the lock.
func (k *keeper) wait(name string, all []*corev1.Node, zones map[string]zone, now time.Time) time.Duration {
	apart, none := zones[name].apart(k.rules)
	if none {
		k.cut[name] = true
		return apart
	}
	if k.cut[name] {
		delete(k.cut, name)
		k.healed[name] = now
	}
	// The others may only not have been heard of yet.
	if left := k.healed[name].Add(k.rules.Grace).Sub(now); left > 0 {
		return left
	}
	zones, shows := k.doubtful(all, now)
	slower, none := zones[name].apart(k.rules)
	if none || isDark(zones) {
		return shows
	}
	return k.evicted[name].Add(max(apart, slower)).Sub(now)
}

// doubtful are the zones as they are if nodes are lost that have been silent for longer than those that are well, and
// how long it is until it shows of the first of them. A cut is not seen at once: the nodes that it takes away have
// renewed their leases at different times before, and the first one that is lost would be given up while the rest seem
// well.
func (k *keeper) doubtful(all []*corev1.Node, now time.Time) (zones map[string]zone, shows time.Duration) {
	zones = zonesOf(all, func(n *corev1.Node) bool {
		if !isReady(n) {
			return false
		}
		s, known := k.seen[n.Name]
		silent := now.Sub(s.at)
		if !known || silent < k.rules.Grace/2 {
			return true
		}
		if left := max(k.rules.Grace-silent, soon); shows == 0 || left < shows {
			shows = left
		}
		return false
	})
	return zones, shows
}
