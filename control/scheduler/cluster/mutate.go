package cluster

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

var _ fwk.MutableSnapshotSharedLister = (*Snapshot)(nil)

var (
	errMutating    = errors.New("change snapshot: it is being changed already")
	errNotMutating = errors.New("change snapshot: nobody has begun to")
)

// StartMutations implements [fwk.MutableSnapshotSharedLister]: from now on the snapshot says what would be.
func (s *Snapshot) StartMutations() error {
	if s.before != nil {
		return errMutating
	}
	s.before = map[string]*NodeInfo{}
	return nil
}

// EndMutations implements [fwk.MutableSnapshotSharedLister]: the snapshot says what is again.
func (s *Snapshot) EndMutations() error {
	if s.before == nil {
		return errNotMutating
	}
	parts := false
	for name, info := range s.before {
		parts = s.set(name, info) || parts
		s.changes.add(name)
	}
	s.before = nil
	if parts {
		s.parts.Store(nil)
	}
	return nil
}

// AddPod implements [fwk.MutableSnapshotSharedLister].
func (s *Snapshot) AddPod(pod fwk.PodInfo, node string) error {
	return s.mutate(node, func(n *NodeInfo) error {
		n.AddPodInfo(pod)
		return nil
	})
}

// RemovePod implements [fwk.MutableSnapshotSharedLister].
func (s *Snapshot) RemovePod(log klog.Logger, pod *corev1.Pod, node string) error {
	return s.mutate(node, func(n *NodeInfo) error { return n.RemovePod(log, pod) })
}

// mutate changes a node, which is kept as it was.
func (s *Snapshot) mutate(name string, change func(*NodeInfo) error) error {
	if s.before == nil {
		return errNotMutating
	}
	had := s.nodes[name]
	if had == nil {
		return fmt.Errorf("change snapshot: there is no node %q", name)
	}
	next := had.clone()
	if err := change(next); err != nil {
		return err
	}
	// Who keeps what nodes come to by their generation must not take this one for any that there is or will be.
	s.mutations++
	next.generation = -s.mutations
	if s.before[name] == nil {
		s.before[name] = had.clone()
	}
	s.changes.add(name)
	if s.set(name, next) {
		s.parts.Store(nil)
	}
	return nil
}
