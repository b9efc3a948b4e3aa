// Package kube is Kubernetes' policy for control groups: the QoS classes and the tree of groups that they make, what
// requests, limits and the node's choices come to in a group's files, and OOM scores. Below it is package cgroups,
// which knows nothing of pods.
package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
)

// Tree is the part of the hierarchy the agent owns: kubepods below the root, with the QoS classes and the pods' groups.
// It holds no state; what is there is the truth.
type Tree struct {
	d     Driver
	h     *cgroups.Hierarchy
	root  string
	opts  Options
	limit NodeLimits
}

// NewTree is the tree below the --cgroup-root, made by the cgroupfs driver.
func NewTree(h *cgroups.Hierarchy, root string) *Tree {
	return &Tree{d: Cgroupfs(h), h: h, root: plainPath(root)}
}

// WithDriver returns a tree whose groups this driver makes.
func (t *Tree) WithDriver(d Driver) *Tree {
	c := *t
	c.d = d
	return &c
}

// WithOptions returns a tree that makes pods with these node-wide choices.
func (t *Tree) WithOptions(o Options) *Tree {
	c := *t
	c.opts = o
	return &c
}

// WithLimits returns a tree whose pods together have these limits.
func (t *Tree) WithLimits(l NodeLimits) *Tree {
	c := *t
	c.limit = l
	return &c
}

// Options are the node-wide choices of this tree.
func (t *Tree) Options() Options { return t.opts }

// ClassPath is the group of a whole class.
func (t *Tree) ClassPath(q corev1.PodQOSClass) string { return t.d.Path(t.root, qosNames(q)...) }

// Setup makes the groups of the classes; idempotent.
func (t *Tree) Setup() error {
	if err := t.d.Create(t.ClassPath(corev1.PodQOSGuaranteed), t.limit.resources(t.opts.Unified)); err != nil {
		return fmt.Errorf("set up pod groups: %w", err)
	}
	least := uint64(minShares)
	for _, g := range []struct {
		class corev1.PodQOSClass
		r     *specs.LinuxResources
	}{
		{corev1.PodQOSBurstable, nil}, // SyncQoS sets it; a running node's value must not drop while we start
		{corev1.PodQOSBestEffort, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &least}}},
	} {
		if err := t.d.Create(t.ClassPath(g.class), g.r); err != nil {
			return fmt.Errorf("set up pod groups: %w", err)
		}
	}
	return nil
}

// EnsurePod makes the pod's group with its limits and returns its path; idempotent.
func (t *Tree) EnsurePod(pod *corev1.Pod) (string, error) {
	path := t.PodPath(pod)
	if err := t.d.Create(path, PodResources(pod, t.opts)); err != nil {
		return "", fmt.Errorf("set up group of pod: %w", err)
	}
	return path, nil
}

// PodPath is where EnsurePod puts the pod.
func (t *Tree) PodPath(pod *corev1.Pod) string { return pathOf(t, pod.UID, QoS(pod)) }

func pathOf(t *Tree, uid types.UID, q corev1.PodQOSClass) string {
	return t.d.Path(t.root, append(qosNames(q), podPrefix+string(uid))...)
}

// RemovePod kills what is left in the pod's groups and removes them. path is a hint: the uid is looked for in every
// class, because a pod's class may have been another when its group was made.
func (t *Tree) RemovePod(ctx context.Context, uid types.UID, path string) error {
	paths := []string{path}
	for _, q := range classes() {
		if p := pathOf(t, uid, q); p != path {
			paths = append(paths, p)
		}
	}
	for _, p := range paths {
		if p == "" {
			continue
		}
		if err := t.d.Remove(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// Remove takes the whole tree away, with everything in it.
func (t *Tree) Remove(ctx context.Context) error {
	return t.d.Remove(ctx, t.ClassPath(corev1.PodQOSGuaranteed))
}

// Root is the group that the tree is in, and whether it is a unit of systemd.
func (t *Tree) Root() (path string, unit bool) {
	return t.d.Path(t.root), t.d.Driver() == cgroups.DriverSystemd
}

// RemoveRoot takes the group away that a tree was in.
func RemoveRoot(ctx context.Context, t *Tree) error { return t.d.Remove(ctx, t.d.Path(t.root)) }

func classes() []corev1.PodQOSClass {
	return []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
}

// Pods lists the uids that have groups, sorted, so that the agent can find the orphans among them.
func (t *Tree) Pods() ([]types.UID, error) {
	groups, err := groupsOfPods(t)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(groups)), nil
}

// groupsOfPods are the pods' groups by the uid that their name tells.
func groupsOfPods(t *Tree) (map[types.UID][]string, error) {
	out := map[types.UID][]string{}
	for _, q := range classes() {
		class := t.ClassPath(q)
		names, err := t.h.Children(class)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if uid, ok := podUID(n); ok {
				out[uid] = append(out[uid], path.Join(class, n))
			}
		}
	}
	return out, nil
}

// maxRemovals is how many groups are removed at a time: what each waits for is processes that die, and systemd.
const maxRemovals = 8

// RemoveOrphans removes the groups that carry a pod's name of our making, and none of the pods for which known is true:
// what a crash has left. It returns those it has removed.
func (t *Tree) RemoveOrphans(ctx context.Context, known func(types.UID) bool) ([]string, error) {
	groups, err := groupsOfPods(t)
	if err != nil {
		return nil, err
	}
	var (
		out  []string
		errs []error
		mu   sync.Mutex
		wait sync.WaitGroup
		gate = make(chan struct{}, maxRemovals)
	)
	for uid, paths := range groups {
		if known(uid) {
			continue
		}
		for _, p := range paths {
			gate <- struct{}{}
			wait.Go(func() {
				defer func() { <-gate }()
				err := t.d.Remove(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, err)
					return
				}
				out = append(out, p)
			})
		}
	}
	wait.Wait()
	slices.Sort(out)
	return out, errors.Join(errs...)
}
