package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume"
)

// slowVolumes are the volumes of pods as their environments have them: who waits for a driver, for a server or for a
// disk of one holds up no other pod.
type slowVolumes struct {
	Volumes
	node *node
}

// Setup is part of [environment.Volumes].
func (v slowVolumes) Setup(ctx context.Context, pod *corev1.Pod, content volume.Content) (map[string]string, error) {
	if !v.Elsewhere(pod) {
		return v.Volumes.Setup(ctx, pod, content)
	}
	var paths map[string]string
	err := v.node.starting.outside(func() (err error) {
		paths, err = v.Volumes.Setup(ctx, pod, content)
		return err
	})
	return paths, err
}

// Teardown is part of [environment.Volumes].
func (v slowVolumes) Teardown(ctx context.Context, uid types.UID) error {
	return v.end(uid, func() error { return v.Volumes.Teardown(ctx, uid) })
}

// Release is part of [environment.Volumes].
func (v slowVolumes) Release(ctx context.Context, uid types.UID) error {
	return v.end(uid, func() error { return v.Volumes.Release(ctx, uid) })
}

func (v slowVolumes) end(uid types.UID, fn func() error) error {
	if w, ok := v.node.registry.get(uid); ok && v.Elsewhere(w.share.Pod) {
		return v.node.stopping.outside(fn)
	}
	return fn()
}
