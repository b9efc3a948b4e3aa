package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// diff is what makes one Node another: the parts of a strategic merge patch in which only what differs is, so that
// what others write meanwhile stays.
type diff struct {
	metadata, status map[string]any // nil: nothing differs
	conditions       []corev1.NodeCondition
	otherwise        bool // a condition is another one, and not only looked at again
}

// changed says whether there is anything in it but that the node lives.
func (d *diff) changed() bool { return d.metadata != nil || d.status != nil || d.otherwise }

// key is the same for the same labels and annotations.
func (d *diff) key() string {
	text, err := json.Marshal(d.metadata)
	if err != nil {
		return ""
	}
	return string(text)
}

// patch is of the status, by which labels and annotations can be written too.
func (d *diff) patch() map[string]any {
	status := map[string]any{"conditions": d.conditions}
	maps.Copy(status, d.status)
	out := map[string]any{"status": status}
	if d.metadata != nil {
		out["metadata"] = d.metadata
	}
	return out
}

// compare is what makes before what after is.
func compare(before, after *corev1.Node) (d diff, err error) {
	was, err := content(before)
	if err != nil {
		return d, err
	}
	is, err := content(after)
	if err != nil {
		return d, err
	}
	all := merge(was, is)
	d.metadata, _ = all["metadata"].(map[string]any)
	d.status, _ = all["status"].(map[string]any)
	if list, differs := d.status["addresses"]; differs {
		// By their types, which the API merges them by, the addresses of two families are one.
		addresses, _ := list.([]any)
		d.status["addresses"] = append(addresses, map[string]any{"$patch": "replace"})
	}
	for _, c := range after.Status.Conditions {
		if isOurs(c.Type) {
			d.conditions = append(d.conditions, c)
			d.otherwise = d.otherwise || differs(before.Status.Conditions, &c)
		}
	}
	return d, nil
}

// differs says whether a condition is another than the list has, but for when it was looked at.
func differs(list []corev1.NodeCondition, c *corev1.NodeCondition) bool {
	for _, b := range list {
		if b.Type == c.Type {
			return b.Status != c.Status || b.Reason != c.Reason || b.Message != c.Message
		}
	}
	return true
}

// content is what of a Node is written, but for conditions.
func content(n *corev1.Node) (map[string]any, error) {
	s := n.Status
	s.Conditions = nil
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": n.Labels, "annotations": n.Annotations},
		"status":   s,
	})
	if err != nil {
		return nil, fmt.Errorf("write the Node: %w", err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("write the Node: %w", err)
	}
	return out, nil
}

// merge is what makes was what is is, by the rules of merge patches: null for what is there no more, and whole lists.
func merge(was, is map[string]any) map[string]any {
	out := map[string]any{}
	for key, now := range is {
		before, had := was[key]
		if had && reflect.DeepEqual(before, now) {
			continue
		}
		b, wasMap := before.(map[string]any)
		n, isMap := now.(map[string]any)
		if !isMap {
			out[key] = now
			continue
		}
		if !wasMap {
			b = map[string]any{}
		}
		if inner := merge(b, n); len(inner) > 0 || !had {
			out[key] = inner
		}
	}
	for key, before := range was {
		if _, has := is[key]; !has && before != nil {
			out[key] = nil
		}
	}
	return out
}
