package cycle

import (
	"sync"

	fwk "k8s.io/kube-scheduler/framework"
)

// GroupState is what plugins hand on during one attempt to schedule a group of pods.
type GroupState struct{ all sync.Map }

var _ fwk.PodGroupCycleState = (*GroupState)(nil)

// Read implements [fwk.PodGroupCycleState].
func (s *GroupState) Read(key fwk.StateKey) (fwk.StateData, error) {
	value, there := s.all.Load(key)
	if !there {
		return nil, fwk.ErrNotFound
	}
	return value.(fwk.StateData), nil // only such are written
}

// Write implements [fwk.PodGroupCycleState].
func (s *GroupState) Write(key fwk.StateKey, value fwk.StateData) { s.all.Store(key, value) }

// Delete implements [fwk.PodGroupCycleState].
func (s *GroupState) Delete(key fwk.StateKey) { s.all.Delete(key) }

// ShouldRecordPluginMetrics implements [fwk.PodGroupCycleState].
func (s *GroupState) ShouldRecordPluginMetrics() bool { return false }

// GetParentPlacementCycleState implements [fwk.PodGroupCycleState]: no group is in another one.
func (s *GroupState) GetParentPlacementCycleState() fwk.PlacementCycleState { return nil }
