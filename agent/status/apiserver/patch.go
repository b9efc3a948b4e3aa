package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// empty is the patch that says nothing.
const empty = "{}"

// errSame is that two statuses differ in nothing that the API has a word for, as parts of a second.
var errSame = errors.New("nothing to say")

// diff is the strategic merge patch that makes one status of another.
func diff(was, now *corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(&corev1.Pod{Status: *was})
	if err != nil {
		return nil, fmt.Errorf("compare statuses: %w", err)
	}
	after, err := json.Marshal(&corev1.Pod{Status: *now})
	if err != nil {
		return nil, fmt.Errorf("compare statuses: %w", err)
	}
	out, err := strategicpatch.CreateTwoWayMergePatch(before, after, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare statuses: %w", err)
	}
	return out, nil
}

// body is the patch of one version of one pod alone. A patch that nobody knows to have arrived may still be on its way
// when the next is sent: made for a version that is gone by then, it cannot undo what came after it.
func body(has *seen, now *corev1.PodStatus) ([]byte, error) {
	d, err := diff(&has.status, now)
	if err != nil {
		return nil, err
	}
	if len(d) <= len(empty) {
		return nil, errSame
	}
	out, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": has.uid, "resourceVersion": has.version}})
	if err != nil {
		return nil, fmt.Errorf("name version of pod: %w", err)
	}
	out[len(out)-1] = ','
	return append(out, d[1:]...), nil
}
