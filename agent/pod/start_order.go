package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/pod/admission"
)

// watchAwaited rings awaited when a pod has come up or gone down.
func watchAwaited(ctx context.Context, all Statuses, awaited chan<- struct{}) {
	states := map[types.NamespacedName]admission.State{}
	// It ends with ctx.
	_ = all.Subscribe()(ctx, func(t watch.EventType, p *corev1.Pod) error {
		key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		before, now := states[key], admission.StateOf(p)
		if states[key] = now; t == watch.Deleted {
			delete(states, key)
		}
		if before != now {
			select {
			case awaited <- struct{}{}:
			default:
			}
		}
		return nil
	})
}
