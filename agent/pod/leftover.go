package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/spec"
)

// findAll finds every pod that the runtime has, and every one of which only a directory is left. Cgroups and logs are
// not looked at: a pod's directory is made before them and goes after them, and those without one may be somebody
// else's.
func (l *link) findAll(ctx context.Context) (map[types.UID]*corev1.Pod, error) {
	sandboxes, err := l.node.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := l.node.cfg.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	found := map[types.UID]*corev1.Pod{}
	of := map[string][]*runtimeapi.Container{}
	for _, c := range containers.GetContainers() {
		uid := c.GetLabels()[spec.PodUIDLabel]
		of[uid] = append(of[uid], c)
	}
	for _, s := range sandboxes.GetItems() {
		uid := s.GetMetadata().GetUid()
		// Sandboxes without the label are not of a pod: somebody has made them by hand. Pods of others, of a kubelet or
		// of another agent on the same runtime, are theirs to end.
		if uid == "" || s.GetLabels()[spec.PodUIDLabel] != uid ||
			s.GetAnnotations()[spec.OwnerAnnotation] != l.node.cfg.RootDir {
			continue
		}
		found[types.UID(uid)] = spec.Restore(s, of[uid])
	}
	left, err := l.directories()
	if err != nil {
		return nil, err
	}
	for _, uid := range left {
		if found[uid] == nil {
			found[uid] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		}
	}
	return found, nil
}

// directories are the pods that have one.
func (l *link) directories() ([]types.UID, error) {
	out, err := l.node.cfg.Volumes.Pods()
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(l.node.cfg.RootDir, "pods"))
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("list pods' directories: %w", err)
	}
	for _, e := range entries {
		out = append(out, types.UID(e.Name()))
	}
	return out, nil
}

// leftovers are pods that were there before the manager, and that nobody has asked for yet. They belong to its
// goroutine.
type leftovers struct {
	manager *Manager
	found   map[types.UID]*corev1.Pod
}

// adoptNone ends what was found and nobody has asked for.
func (l *leftovers) adoptNone(ctx context.Context) {
	wanted := map[types.UID]bool{}
	for key, want := range l.manager.desired {
		wanted[want.pod.UID] = wanted[want.pod.UID] || !isAnother(l.found[want.pod.UID], key)
	}
	for uid := range l.found {
		if wanted[uid] {
			delete(l.found, uid)
			continue
		}
		l.endFound(ctx, uid)
	}
}

// adopt makes what was found of a pod go on that a changed manifest does not ask for any more. It is false where its
// definition was not kept.
func (l *leftovers) adopt(ctx context.Context, uid types.UID) bool {
	pod, ok := environment.Definition(l.manager.node.cfg.RootDir, uid)
	if !ok || l.found[uid].Name == "" || pod.Name != l.found[uid].Name {
		return false
	}
	delete(l.found, uid)
	l.manager.workers.start(ctx, pod)
	return true
}

func (l *leftovers) endFound(ctx context.Context, uid types.UID) {
	pod := l.found[uid]
	delete(l.found, uid)
	if pod.Name == "" {
		l.manager.log.Info("removing what is left of a pod", "uid", string(uid))
	} else {
		l.manager.log.Info("ending a pod that is not wanted any more", "pod", pod.Namespace+"/"+pod.Name, "uid", string(uid))
	}
	w := l.manager.workers.start(ctx, pod)
	l.manager.workers.end(w, spec.Grace(pod))
}
