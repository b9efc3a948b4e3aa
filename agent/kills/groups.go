package kills

import (
	"errors"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cgroups/oom"
	"github.com/berth-node/berth/cgroups/pressure"
)

// Tree are the groups of pods of a node.
type Tree struct {
	Pods *kube.Tree
	All  *cgroups.Hierarchy
}

var _ Groups = Tree{}

// Top implements [Groups].
func (t Tree) Top() string { return t.Pods.ClassPath(corev1.PodQOSGuaranteed) }

// Owner implements [Groups].
func (t Tree) Owner(group string) (uid types.UID, container string, ok bool) {
	return t.Pods.Owner(group)
}

// Named implements [Groups].
func (t Tree) Named(group string) (string, bool) {
	for _, q := range []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		if group == t.Pods.ClassPath(q) {
			return "the class of " + string(q) + " pods", true
		}
	}
	return "the group of all pods", group == t.Top()
}

// Containers implements [Groups].
func (t Tree) Containers(p *corev1.Pod) (map[string]string, error) { return t.Pods.ContainerGroups(p) }

// Count implements [Groups].
func (t Tree) Count(group string) (uint64, error) { return oom.Count(t.All, group) }

// Look implements [Groups].
func (t Tree) Look(groups ...string) []oom.Figures { return oom.LookAll(t.All, groups...) }

// Pids implements [Groups].
func (t Tree) Pids(group string) ([]int, error) { return t.All.Pids(group) }

// Listen implements [Groups]: on v2 the counters of a group are those of all below it too.
func (t Tree) Listen() (told <-chan struct{}, end func(), err error) {
	w, err := pressure.New()
	if err != nil {
		return nil, func() {}, err
	}
	c, err := w.Counters(t.All.MemoryDir(t.Top()) + "/memory.events")
	if err != nil {
		w.Close()
		if errors.Is(err, pressure.ErrUnsupported) {
			err = nil
		}
		return nil, func() {}, err
	}
	return c.Events(), func() { c.Close(); w.Close() }, nil
}

// containerGroup is the group of a container in which a group is, or the pod's; "" where it is nobody's.
func (k *Manager) containerGroup(group string) string {
	_, id, ok := k.cfg.Groups.Owner(group)
	if !ok {
		return ""
	}
	for {
		above := path.Dir(group)
		if _, of, ok := k.cfg.Groups.Owner(above); !ok || of != id {
			return group
		}
		group = above
	}
}

// limitName names the group whose limit was reached.
func (k *Manager) limitName(r *oom.Report) string {
	group := r.Kill.LimitGroup
	if group == "" {
		return ""
	}
	if name, ok := k.cfg.Groups.Named(group); ok {
		return name
	}
	of, id, ok := k.cfg.Groups.Owner(group)
	switch {
	case ok && string(of) == r.UID && id == "":
		return "the pod"
	case ok && string(of) == r.UID:
		return "the container itself"
	}
	return "group " + path.Clean(group)
}
