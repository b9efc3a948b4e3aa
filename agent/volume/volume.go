// Package volume makes a pod's volumes on this node and takes them away again.
package volume

import (
	"context"
	"errors"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config says where the pods' directories are.
type Config struct {
	Root string // the agent's root directory
	Log  *slog.Logger
}

// Manager makes and removes volumes.
type Manager struct{ cfg Config }

// New returns a Manager.
func New(cfg Config) *Manager { return &Manager{cfg: cfg} }

var errTODO = errors.New("not there yet")

// Setup makes every volume of the pod and returns the host path of each by name.
func (m *Manager) Setup(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	return nil, errTODO
}

// Teardown unmounts and removes what Setup made.
func (m *Manager) Teardown(ctx context.Context, uid types.UID) error { return errTODO }

// SubPath pins a path inside a volume for one mount of one container.
func (m *Manager) SubPath(ctx context.Context, pod *corev1.Pod, container string, idx int, volPath, subPath string) (string, error) {
	return "", errTODO
}

// Pods returns the pods that have a directory.
func (m *Manager) Pods() ([]types.UID, error) { return nil, errTODO }

// HostsFile is the content of a pod's /etc/hosts.
func HostsFile(pod *corev1.Pod, ips []string, node []byte) []byte { return nil }
