package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/record"
)

// findAll finds every pod that the runtime has, and every one of which only a directory is left. Cgroups and logs are not
// looked at: a pod's directory is made before them and goes after them, and those without one may be somebody else's.
func (m *Manager) findAll(ctx context.Context) error {
	sandboxes, err := m.node.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := m.node.cfg.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	of := map[string][]*runtimeapi.Container{}
	for _, c := range containers.GetContainers() {
		uid := c.GetLabels()[spec.PodUIDLabel]
		of[uid] = append(of[uid], c)
	}
	for _, s := range sandboxes.GetItems() {
		uid := s.GetMetadata().GetUid()
		// Sandboxes without the label are not of a pod: somebody has made them by hand. Pods of others, of a kubelet or of another
		// agent on the same runtime, are theirs to end.
		if uid == "" || s.GetLabels()[spec.PodUIDLabel] != uid || s.GetAnnotations()[spec.OwnerAnnotation] != m.node.cfg.RootDir {
			continue
		}
		m.found[types.UID(uid)] = spec.Restore(s, of[uid])
	}
	left, err := m.directories()
	if err != nil {
		return err
	}
	for _, uid := range left {
		if m.found[uid] == nil {
			m.found[uid] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		}
	}
	return nil
}

// directories are the pods that have one.
func (m *Manager) directories() ([]types.UID, error) {
	out, err := m.node.cfg.Volumes.Pods()
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(m.node.cfg.RootDir, "pods"))
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("list pods' directories: %w", err)
	}
	for _, e := range entries {
		out = append(out, types.UID(e.Name()))
	}
	return out, nil
}

// adoptNone ends what was found and nobody has asked for.
func (m *Manager) adoptNone(ctx context.Context) {
	wanted := map[types.UID]bool{}
	for _, pod := range m.desired {
		wanted[pod.UID] = true
	}
	for uid := range m.found {
		if wanted[uid] {
			delete(m.found, uid)
			continue
		}
		m.endFound(ctx, uid)
	}
}

// definitionFile has the pod that the directory was made for, as long as it is there.
func definitionFile(rootDir string, uid types.UID) string {
	return filepath.Join(rootDir, "pods", string(uid), "pod.json")
}

// keepDefinition records what the pod is. An agent that finds another one wanted in its place lets it go on until the node takes that.
func keepDefinition(rootDir string, pod *corev1.Pod) error {
	err := record.Write(definitionFile(rootDir, pod.UID), pod)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("record pod: %w", err)
}

// adopt makes what was found of a pod go on that a changed manifest does not ask for any more. It is false where its definition was
// not kept.
func (m *Manager) adopt(ctx context.Context, uid types.UID) bool {
	pod := &corev1.Pod{}
	if m.found[uid].Name == "" || !readRecord(definitionFile(m.node.cfg.RootDir, uid), pod) || pod.UID != uid || pod.Name != m.found[uid].Name {
		return false
	}
	delete(m.found, uid)
	m.startWorker(ctx, pod)
	return true
}

func (m *Manager) endFound(ctx context.Context, uid types.UID) {
	pod := m.found[uid]
	delete(m.found, uid)
	if pod.Name == "" {
		m.log.Info("removing what is left of a pod", "uid", string(uid))
	} else {
		m.log.Info("ending a pod that is not wanted any more", "pod", pod.Namespace+"/"+pod.Name, "uid", string(uid))
	}
	w := m.startWorker(ctx, pod)
	m.endWorker(w)
}
