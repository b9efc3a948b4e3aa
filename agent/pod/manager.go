// Package pod runs the pods of this node: it takes the latest desired pods from a channel and makes the runtime, the cgroups and
// the volumes be what they say.
package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/source"
	"github.com/berth-node/berth/agent/status"
)

// Manager has one worker for each pod.
type Manager struct {
	cfg    Config
	status *status.Writer
}

// New returns a Manager that does nothing before [Manager.Run].
func New(c Config) (*Manager, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	return &Manager{cfg: c, status: status.NewWriter()}, nil
}

// Run makes the node run the pods that updates tell of, until ctx ends and everything it started has ended. The pods go on.
func (m *Manager) Run(ctx context.Context, updates <-chan source.Update) error {
	<-ctx.Done()
	return nil
}

// List returns all pods with their status, in the order of their names. They are shared and must not be changed.
func (m *Manager) List() []*corev1.Pod { return m.status.List() }

// Get returns one pod with its status.
func (m *Manager) Get(namespace, name string) (*corev1.Pod, bool) {
	return m.status.Get(types.NamespacedName{Namespace: namespace, Name: name})
}

// Watch calls fn with ADDED for each pod there is, then with every change in order, until ctx ends or fn returns an error, which
// it returns.
func (m *Manager) Watch(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error {
	return m.status.Watch(ctx, fn)
}
