package cgroups

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Tree is the part of the hierarchy the agent owns: <root>/kubepods with the QoS classes and the pods' groups. It holds no
// state; what is there is the truth.
type Tree struct {
	h    *Hierarchy
	root string
	opts Options
	log  *slog.Logger
}

// NewTree is the tree below the --cgroup-root.
func NewTree(h *Hierarchy, root string, log *slog.Logger) *Tree {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Tree{h: h, root: clean(root), log: log}
}

// WithOptions returns a tree that makes pods with these node-wide choices.
func (t *Tree) WithOptions(o Options) *Tree {
	c := *t
	c.opts = o
	return &c
}

// Options are the node-wide choices that pods are made with.
func (t *Tree) Options() Options { return t.opts }

// Setup makes the groups of the classes; idempotent.
func (t *Tree) Setup() error {
	top := Shares(int64(runtime.NumCPU()) * 1000)
	least := uint64(minShares)
	for _, g := range []struct {
		class  corev1.PodQOSClass
		shares *uint64
	}{
		{corev1.PodQOSGuaranteed, &top},
		{corev1.PodQOSBurstable, nil}, // SyncQoS sets it; a running node's value must not drop while we start
		{corev1.PodQOSBestEffort, &least},
	} {
		r := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: g.shares}}
		if err := t.h.Create(QoSPath(t.root, g.class), r); err != nil {
			return fmt.Errorf("set up pod groups: %w", err)
		}
	}
	return nil
}

// EnsurePod makes the pod's group with its limits and returns its path; idempotent.
func (t *Tree) EnsurePod(pod *corev1.Pod) (string, error) {
	path := t.PodPath(pod)
	if err := t.h.Create(path, PodResourcesWith(pod, t.opts)); err != nil {
		return "", fmt.Errorf("set up group of pod: %w", err)
	}
	return path, nil
}

// PodPath is where EnsurePod puts the pod.
func (t *Tree) PodPath(pod *corev1.Pod) string { return PodPath(t.root, pod.UID, QoS(pod)) }

// RemovePod kills what is left in the pod's groups and removes them. path is a hint: the uid is looked for in every class,
// because a pod's class may have been another when its group was made.
func (t *Tree) RemovePod(ctx context.Context, uid types.UID, path string) error {
	paths := []string{path}
	for _, q := range classes() {
		if p := PodPath(t.root, uid, q); p != path {
			paths = append(paths, p)
		}
	}
	for _, p := range paths {
		if p == "" {
			continue
		}
		if err := t.h.Remove(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func classes() []corev1.PodQOSClass {
	return []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
}

// Pods lists the uids that have groups, sorted, so that the agent can find the orphans among them.
func (t *Tree) Pods() ([]types.UID, error) {
	var out []types.UID
	for _, q := range classes() {
		names, err := t.h.Children(QoSPath(t.root, q))
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if uid, ok := podUID(n); ok {
				out = append(out, uid)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// SyncQoS gives the Burstable class the sum of its pods' requests as its share against the Guaranteed pods beside it.
func (t *Tree) SyncQoS(pods []*corev1.Pod) error {
	var milli int64
	for _, p := range pods {
		if QoS(p) == corev1.PodQOSBurstable {
			requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
			milli += requests.Cpu().MilliValue()
		}
	}
	burstable, least := Shares(milli), uint64(minShares)
	for class, shares := range map[corev1.PodQOSClass]*uint64{
		corev1.PodQOSBurstable: &burstable, corev1.PodQOSBestEffort: &least,
	} {
		r := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: shares}}
		if err := t.h.Update(QoSPath(t.root, class), r); err != nil {
			return fmt.Errorf("update class %s: %w", class, err)
		}
	}
	return nil
}
