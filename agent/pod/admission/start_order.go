package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
)

// ReasonStartOrder is why a pod waits for others that it starts after.
const ReasonStartOrder = "NotItsTurn"

// Pods are those that are wanted, and those that are shown.
type Pods interface {
	// Desired is nil for a name that nobody asks for.
	Desired(types.NamespacedName) *corev1.Pod
	// Shown has the pod's status.
	Shown(types.NamespacedName) (*corev1.Pod, bool)
}

// StartOrder has a pod wait until those are up that it is to start after. Once it has started, what becomes of them is
// no matter.
func StartOrder(pods Pods) Check { return startOrder{pods}.check }

type startOrder struct{ pods Pods }

func (o startOrder) check(r *Request) *Verdict {
	after, err := desired.After(r.Pod)
	if err != nil {
		return never(ReasonStartOrder, err.Error())
	}
	for _, d := range after {
		if shown, ok := o.pods.Shown(d.NamespacedName); ok && StateOf(shown).up(d.Ready) {
			continue
		}
		message := fmt.Sprintf("the pod starts when %s", d)
		if circle := o.circle(r.Key(), nil); circle != nil {
			message = fmt.Sprintf("pods wait for each other (%s): take the annotation %s from one of them",
				strings.Join(circle, " after "), desired.AnnotationAfter)
		} else if o.pods.Desired(d.NamespacedName) == nil {
			message += ", which no manifest asks for"
		}
		return waits(ReasonStartOrder, message)
	}
	return nil
}

// State is what of a pod others may wait for.
type State struct{ Running, Succeeded, Ready bool }

// StateOf is the state of a pod by its status.
func StateOf(pod *corev1.Pod) State {
	if pod.DeletionTimestamp != nil {
		return State{}
	}
	return State{
		Running: pod.Status.Phase == corev1.PodRunning, Succeeded: pod.Status.Phase == corev1.PodSucceeded,
		Ready: slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}),
	}
}

func (s State) up(ready bool) bool { return s.Ready || !ready && (s.Running || s.Succeeded) }

// circle returns the names of pods that wait for each other, beginning and ending with key; nil: key is not among any.
func (o startOrder) circle(key types.NamespacedName, way []types.NamespacedName) []string {
	if i := slices.Index(way, key); i >= 0 {
		if i > 0 {
			return nil // they wait for each other without the first one
		}
		var out []string
		for _, k := range append(way, key) {
			out = append(out, k.String())
		}
		return out
	}
	pod := o.pods.Desired(key)
	if pod == nil {
		return nil
	}
	after, _ := desired.After(pod) // one that is wrong was refused
	for _, d := range after {
		if found := o.circle(d.NamespacedName, append(way, key)); found != nil {
			return found
		}
	}
	return nil
}
