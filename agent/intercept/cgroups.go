package intercept

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod"
)

// groups has what changes the groups of pods go through an interceptor.
type groups struct {
	pod.Cgroups
	around Interceptor
}

// Cgroups has the interceptors around what changes the groups of pods, the first one outermost.
func Cgroups(g pod.Cgroups, around ...Interceptor) pod.Cgroups { return groups{g, chain(around)} }

// EnsurePod implements [pod.Cgroups].
func (g groups) EnsurePod(p *corev1.Pod) (path string, err error) {
	err = g.around(context.Background(), Call{Operation: "create", Pod: p}, func() (err error) {
		path, err = g.Cgroups.EnsurePod(p)
		return err
	})
	return path, err
}

// ResizePod implements [pod.Cgroups].
func (g groups) ResizePod(p *corev1.Pod, ids map[string]string, write func(string) error) error {
	return g.around(context.Background(), Call{Operation: "update", Pod: p}, func() error { return g.Cgroups.ResizePod(p, ids, write) })
}

// RemovePod implements [pod.Cgroups].
func (g groups) RemovePod(ctx context.Context, uid types.UID, path string) error {
	return g.around(ctx, Call{Operation: "destroy", UID: uid}, func() error { return g.Cgroups.RemovePod(ctx, uid, path) })
}
