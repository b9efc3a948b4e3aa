package pod

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/status"
)

// admitTurn says whether the pods that a pod is to start after are up. Once it has started, what becomes of them is no matter.
func (m *Manager) admitTurn(pod *corev1.Pod) (verdict, bool) {
	after, err := desired.After(pod)
	if err != nil {
		return verdict{status.Waiting{Reason: "NotItsTurn", Message: err.Error()}, true}, false
	}
	for _, d := range after {
		if m.up(d) {
			continue
		}
		message := fmt.Sprintf("the pod starts when %s", d)
		if circle := m.circle(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, nil); circle != nil {
			message = fmt.Sprintf("pods wait for each other (%s): take the annotation %s from one of them", strings.Join(circle, " after "), desired.AnnotationAfter)
		} else if m.desired[d.NamespacedName] == nil {
			message += ", which no manifest asks for"
		}
		return verdict{Waiting: status.Waiting{Reason: "NotItsTurn", Message: message}}, false
	}
	return verdict{}, true
}

func (m *Manager) up(d desired.Dependency) bool {
	pod, ok := m.status.Get(d.NamespacedName)
	return ok && stateOf(pod).up(d.Ready)
}

// podState is what of a pod others may wait for.
type podState struct{ running, succeeded, ready bool }

func stateOf(pod *corev1.Pod) podState {
	if pod.DeletionTimestamp != nil {
		return podState{}
	}
	return podState{
		running: pod.Status.Phase == corev1.PodRunning, succeeded: pod.Status.Phase == corev1.PodSucceeded,
		ready: slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}),
	}
}

func (s podState) up(ready bool) bool { return s.ready || !ready && (s.running || s.succeeded) }

// circle returns the names of pods that wait for each other, beginning and ending with key; nil: key is not among any.
func (m *Manager) circle(key types.NamespacedName, way []types.NamespacedName) []string {
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
	pod := m.desired[key]
	if pod == nil {
		return nil
	}
	after, _ := desired.After(pod) // one that is wrong was refused
	for _, d := range after {
		if found := m.circle(d.NamespacedName, append(way, key)); found != nil {
			return found
		}
	}
	return nil
}

// watchTurns rings when a pod has come up or gone down.
func (m *Manager) watchTurns(ctx context.Context) {
	states := map[types.NamespacedName]podState{}
	// It ends with ctx.
	_ = m.status.Watch(ctx, func(t watch.EventType, p *corev1.Pod) error {
		key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		before, now := states[key], stateOf(p)
		if states[key] = now; t == watch.Deleted {
			delete(states, key)
		}
		if before != now {
			select {
			case m.turns <- struct{}{}:
			default:
			}
		}
		return nil
	})
}
